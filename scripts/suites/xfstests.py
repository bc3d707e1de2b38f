"""xfstests: the quick ones of its generic tests, on mounts of two pools, which it mounts and unmounts itself."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import trees
from doors import Failed, Place, Pool, Ran, run
from suite import Wanted, last_line
from verdicts import Outcome, Verdict

PIN = trees.Git("https://github.com/kdave/xfstests.git", "63a29724a85f1999e49bf0a9bf0d22643b6116e5")
STEPS = [["sh", "-c", 'make --silent -j"$(nproc)"']]
TEST_SECONDS_MAX = 600
# 3,000,000 appends of 4 bytes one after the other, each a call through FUSE and two requests; some 1,600/s in a debug build beside others.
TEST_SECONDS_MAX_OF = {"generic/069": 3600}
SBIN = ("/sbin", "/usr/sbin")
IMAGE_BYTES = 4 << 30
# Users that it demands; known inside its name space of mounts only.
USERS = {"fsgqa": 61001, "fsgqa2": 61002, "123456-fsgqa": 61003}
# No password, and none in /etc/shadow either, for which `su` would look in vain: it refuses who should be there and is not.
USER = "{0}:*:{1}:{1}::/:/bin/sh\n"
QUICK = re.compile(r"^_begin_fstest\b.*\bquick\b", re.MULTILINE)

# In the place of mount.fuse, to which mount(8) hands what is of type fuse.tidepool: SOURCE DIR -o OPTIONS.
HELPER = """#!/bin/sh
case ",$4," in *,remount,*) exec mount -i -o "$4" "$2" ;; esac
only=
case ",$4," in *,ro,*) only=--read-only ;; esac
case $1 in
{cases}
*) echo "no pool $1" >&2; exit 1 ;;
esac
said={log}.$$
setsid {tidepool} mount --pool suites --allow-other $only "$2" </dev/null >"$said" 2>&1 &
# It is listed before it says so, but busy: the mount itself looks at its root first.
for _ in $(seq 600); do
    grep -q "is mounted at" "$said" && exit 0
    kill -0 $! || break
    sleep 0.05
done
cat "$said" >&2
exit 32
"""
# It knows the type fuse, and not its subtypes.
DF = """#!/bin/sh
/usr/bin/df "$@" | sed 's/ fuse[.]tidepool / fuse /'
"""


@dataclass
class Devices:
    """What it calls devices: pools, or disks in files."""

    settings: dict[str, str]
    pools: list[Pool]
    loops: list[str]


class Xfstests:
    name = "xfstests"
    title = "generic tests of the group quick, on mounts"
    doors = ("below", "fuse")
    floors = dict.fromkeys(doors, 150)
    user = None

    def prepare(self, all_trees: trees.Trees) -> None:
        if os.geteuid() != 0:
            raise trees.Missing("it mounts, which takes root")
        for program, package in (("mount.fuse", "fuse3"), ("xfs_io", "xfsprogs"), ("mkfs.ext4", "e2fsprogs"), ("bc", "bc")):
            trees.program(program, package, *SBIN)
        self.tree = all_trees.built(self.name, PIN, STEPS)
        folder = self.tree / "tests/generic"
        self.tests = [f"generic/{f.name}" for f in sorted(folder.glob("[0-9][0-9][0-9]")) if QUICK.search(f.read_text())]

    def outcomes(self, place: Place, wanted: Wanted) -> Iterator[Outcome]:
        home = place.scratch / "xfstests"
        for name in ("bin", "test", "scratch", "etc"):
            (home / name).mkdir(parents=True)
        devices = on_disks(home) if place.pool is None else on_pools(home, place)
        room = Room(home, place, self.tree, devices.settings)
        try:
            for test in filter(wanted, self.tests):
                yield room.outcome(test)
        finally:
            room.close()
            for pool in devices.pools:
                pool.__exit__()
            for loop in devices.loops:
                subprocess.run(["losetup", "-d", loop], check=False, stdin=subprocess.DEVNULL)


def on_disks(home: Path) -> Devices:
    loops: list[str] = []
    for name in ("test", "scratch"):
        image = home / f"{name}.img"
        with image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        trees.call(["mkfs.ext4", "-q", str(image)])
        ran = subprocess.run(["losetup", "--find", "--show", str(image)], capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            raise Failed(f"losetup ended with {ran.returncode}: {ran.stderr.strip()}")
        loops.append(ran.stdout.strip())
    return Devices({"FSTYP": "ext4", "TEST_DEV": loops[0], "SCRATCH_DEV": loops[1]}, [], loops)


def on_pools(home: Path, place: Place) -> Devices:
    assert place.pool
    second = Pool(place.pool.bin, place.scratch / "pool2")
    second.start()
    sources = [source_of(place.top), source_of(second.mount("fuse"))]
    place.pool.unmount_all()
    second.unmount_all()
    cases = "\n".join(
        f"{shlex.quote(source)}) export TIDEPOOL_RUNTIME={shlex.quote(str(pool.home / 'rt'))} ;;"
        for source, pool in zip(sources, (place.pool, second))
    )
    tidepool, log = str(place.pool.bin / "tidepool"), str(place.logs / "mount")
    script(home / "bin/mount.fuse", HELPER.format(cases=cases, tidepool=shlex.quote(tidepool), log=shlex.quote(log)))
    script(home / "bin/df", DF)
    settings = {"FSTYP": "fuse", "FUSE_SUBTYP": ".tidepool", "TEST_DEV": sources[0], "SCRATCH_DEV": sources[1]}
    return Devices(settings, [second], [])


def script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def source_of(mount: Path) -> str:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        source, at, _ = line.split(" ", 2)
        if at == str(mount):
            return source
    raise Failed(f"nothing is mounted at {mount}")


class Room:
    """A name space of mounts with the users that the tests demand; what tests mount stays in it."""

    def __init__(self, home: Path, place: Place, tree: Path, settings: dict[str, str]) -> None:
        self.home = home
        self.place = place
        self.tree = tree
        lines = {**settings, "TEST_DIR": str(home / "test"), "SCRATCH_MNT": str(home / "scratch")}
        (home / "config").write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in lines.items()))
        for name, tail in (("passwd", USER), ("group", "{0}:x:{1}:\n")):
            with_users = Path("/etc", name).read_text() + "".join(tail.format(*user) for user in USERS.items())
            (home / "etc" / name).write_text(with_users)
        binds = "".join(f"mount --bind {shlex.quote(str(home))}/etc/{name} /etc/{name}\n" for name in ("passwd", "group"))
        helper = home / "bin/mount.fuse"
        if helper.exists():
            binds += f"mount --bind {shlex.quote(str(helper))} {os.path.realpath(trees.program('mount.fuse', 'fuse3', *SBIN))}\n"
        inside = f"set -eu\n{binds}echo ready\nexec sleep infinity"
        self.holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", inside], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        assert self.holder.stdout
        if self.holder.stdout.readline() != b"ready\n":
            raise Failed("no name space of mounts can be made")

    def inside(self, test: str, words: list[str], seconds: float) -> Ran:
        env = {
            **self.place.environment(), "HOST_OPTIONS": str(self.home / "config"), "RESULT_BASE": str(self.place.logs / "results"),
            "PATH": f"{self.home}/bin:{os.environ['PATH']}",
        }  # fmt: skip
        log = self.place.logs / f"{test.replace('/', '-')}.log"
        enter = ["nsenter", "-t", str(self.holder.pid), "-m", f"--wd={self.tree}", "--"]
        return run([*enter, *words], seconds, log, env)

    def outcome(self, test: str) -> Outcome:
        ran = self.inside(test, ["./check", test], TEST_SECONDS_MAX_OF.get(test, TEST_SECONDS_MAX))
        found = read(test, ran)
        # What it has left mounted, generic/306 within the scratch directory, would be in the next one's way.
        if found.verdict == Verdict.FAILED:
            self.tear_off()
        return found

    def tear_off(self) -> None:
        self.inside("tear-off", ["umount", "-l", str(self.home / "test"), str(self.home / "scratch")], 60)

    def close(self) -> None:
        self.tear_off()
        self.holder.kill()
        self.holder.wait()


def read(test: str, ran: Ran) -> Outcome:
    """Of what `check` says of one test. One that did not come to its end has another name, which no exclusion hides."""
    unended = f"{test} end"
    if ran.hung:
        return Outcome(unended, Verdict.FAILED, f"had not ended after {TEST_SECONDS_MAX_OF.get(test, TEST_SECONDS_MAX)} s")
    line = next((line for line in ran.said.splitlines() if line.startswith(f"{test} ")), "")
    if "[not run]" in line or re.search(rf"^Not run: {test}$", ran.said, re.MULTILINE):
        return Outcome(test, Verdict.SKIPPED, line.partition("[not run]")[2].strip())
    if ran.code == 0 and f"Ran: {test}" in ran.said and "Passed all 1 tests" in ran.said:
        return Outcome(test, Verdict.PASSED)
    if not re.search(rf"^Ran: {test}$", ran.said, re.MULTILINE):
        said = [line for line in ran.said.splitlines() if line.strip() and not line.startswith(("Passed all", "Interrupted"))]
        return Outcome(unended, Verdict.FAILED, f"ended with {ran.code} before the end of the test: {' / '.join(said[-2:])}"[:300])
    # The first line that the test says beyond what it should.
    more = next((line for line in ran.said.splitlines() if re.match(r"\s*\+[^+]", line)), "")
    return Outcome(test, Verdict.FAILED, f"{line[len(test):].strip() or last_line(ran.said)} {more.strip()}"[:300])
