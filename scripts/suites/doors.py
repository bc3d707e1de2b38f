"""Pools of two daemons for suites, and the doors to them: a place has a directory, and runs programs there."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from stopping import Stopped, held

DAEMONS = 2
COMMAND_SECONDS_MAX = 120
# After SIGKILL; what then is still there waits in the kernel for a mount.
DEATH_SECONDS_MAX = 10
SAID_BYTES_MAX = 1 << 20
# In the root of each pool, put there by none of the doors under test: root can write below a mount that is gone, and into the real
# directory at the pool's path where the library is not loaded. Tests would pass there, of the file system below.
MARK = ".this-is-the-pool"
NOT_THE_POOL = 125
# Of whoever runs the suites, and not of programs under test.
OWN_VARIABLES = ("TIDEPOOL_POOL", "TIDEPOOL_DIR", "LD_PRELOAD", "XDG_RUNTIME_DIR", "SLURM_JOB_NUM_NODES")


class Failed(Exception):
    """A suite cannot go on; the text says why."""


@dataclass(frozen=True)
class Ran:
    code: int | None
    # None as code: it was killed, because it had not ended in time.
    said: str

    @property
    def hung(self) -> bool:
        return self.code is None


@dataclass(frozen=True)
class User:
    name: str

    def record(self) -> pwd.struct_passwd:
        return pwd.getpwnam(self.name)

    def words(self) -> dict[str, object]:
        """How subprocess becomes this user."""
        record = self.record()
        return {"user": record.pw_uid, "group": record.pw_gid, "extra_groups": []}


def run(
    argv: list[str], seconds: float, log: Path, env: dict[str, str], cwd: Path | None = None, user: User | None = None,
    leaves: bool = False,
) -> Ran:
    """Runs a program in a session of its own, with its output in `log`, and kills what is left of its group at the end. `leaves`:
    only when it takes too long; it starts what has to go on."""
    log.parent.mkdir(parents=True, exist_ok=True)
    child = None
    try:
        with log.open("wb") as out, held():
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env, cwd=cwd,
                start_new_session=True, **(user.words() if user else {}),
            )  # fmt: skip
        code: int | None = child.wait(seconds)
    except subprocess.TimeoutExpired:
        code = None
    except BaseException:
        if child:
            end_session(child)
        raise
    if code is None or not leaves:
        end_session(child)
    return Ran(code, tail_of(log))


def end_session(child: subprocess.Popen[bytes]) -> None:
    """A test that has ended leaves nothing that writes on, into the next one's files."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
    try:
        child.wait(DEATH_SECONDS_MAX)
    except subprocess.TimeoutExpired as waits:
        raise Failed(f"process {child.pid} does not die: it waits in the kernel") from waits


def tail_of(log: Path) -> str:
    with log.open("rb") as file:
        length = file.seek(0, os.SEEK_END)
        file.seek(max(0, length - SAID_BYTES_MAX))
        return file.read().decode(errors="replace")


class Pool:
    """A pool on this machine, of one user. Its files are below `home`, and gone at the end."""

    def __init__(self, bin: Path, home: Path, user: User | None = None) -> None:
        self.bin = bin
        self.home = home
        self.user = user
        self.mounts: dict[Path, subprocess.Popen[bytes]] = {}
        home.mkdir(parents=True)
        for name in ("rt", "store", "logs"):
            (home / name).mkdir()
        if user:
            for path in (home, home / "rt", home / "store", home / "logs"):
                os.chown(path, user.record().pw_uid, user.record().pw_gid)
        # Other users of programs under test pass through; the pool's own directory is nobody else's.
        home.chmod(0o755)
        (home / "rt").chmod(0o700)

    def __enter__(self) -> Pool:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        with held():
            try:
                self.unmount_all()
                self.command("pool", "stop", "--pool", "suites")
            finally:
                shutil.rmtree(self.home, ignore_errors=True)

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
        own = {"TIDEPOOL_RUNTIME": str(self.home / "rt"), "TIDEPOOL_STORE": str(self.home / "store")}
        home = self.user.record().pw_dir if self.user else os.environ.get("HOME", "/")
        return {**kept, **own, "HOME": home}

    def command(self, *words: str) -> str:
        # A pool is there or not when a signal is acted on, and not half.
        with held():
            ran = run(
                [str(self.bin / "tidepool"), *words], COMMAND_SECONDS_MAX, self.home / "logs" / "command",
                self.environment(), cwd=Path("/"), user=self.user, leaves=True,
            )  # fmt: skip
        if ran.code != 0:
            ended = "has not ended" if ran.hung else f"ended with {ran.code}"
            raise Failed(f"'tidepool {' '.join(words)}' {ended}: {ran.said.strip()}")
        return ran.said

    def start(self, *words: str) -> None:
        """Starts it; with `--keep`, on what an earlier one has left."""
        shape = ("--nodes", str(DAEMONS), "--local", "--client", "preload")
        self.command("pool", "start", "--name", "suites", *shape, *words)

    def daemons(self) -> list[int]:
        """Process numbers."""
        ran = self.command("pool", "status", "--pool", "suites", "--json")
        return [daemon["pid"] for daemon in json.loads(ran)["daemons"]]

    def mount(self, name: str) -> Path:
        """Mounts the pool at a new directory; with all users let in, as programs under test become others."""
        path = self.home / name
        path.mkdir(exist_ok=True)
        words = [str(self.bin / "tidepool"), "mount", "--pool", "suites", str(path)]
        if self.user:
            os.chown(path, self.user.record().pw_uid, self.user.record().pw_gid)
        else:
            words.insert(2, "--allow-other")
        with (self.home / "logs" / f"mount-{name}").open("ab") as log, held():
            child = self.mounts[path] = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=self.environment(), cwd="/",
                start_new_session=True, **(self.user.words() if self.user else {}),
            )  # fmt: skip
        deadline = time.monotonic() + COMMAND_SECONDS_MAX
        while not is_mounted(path):
            if child.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"the mount does not come up: {tail_of(self.home / 'logs' / f'mount-{name}')}")
            time.sleep(0.02)
        return path

    def unmount_all(self) -> None:
        for path, child in self.mounts.items():
            child.terminate()
            try:
                child.wait(DEATH_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait(DEATH_SECONDS_MAX)
            if is_mounted(path):
                subprocess.run(["umount", "-l", path], check=False, stdin=subprocess.DEVNULL)
        self.mounts = {}


def is_mounted(path: Path) -> bool:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return any(line.split(" ")[4] == str(path) for line in lines)


class Place:
    """A directory on one side of a door, and programs that run in it."""

    def __init__(
        self, door: str, logs: Path, bin: Path, scratch: Path, seconds: int, user: User | None = None
    ) -> None:
        self.door = door
        # How long tests take that go on for as long as they are told.
        self.seconds = seconds
        self.logs = logs
        self.user = user
        # On the file system below the pool: for what a suite keeps outside.
        self.scratch = scratch
        # Who uses the library owns the pool; a mount is root's where there is root, as /dev/fuse may be.
        owner = None if door == "fuse" and os.geteuid() == 0 else user
        self.pool = None if door == "below" else Pool(bin, scratch / "pool", owner)
        self.top = scratch / "below"

    def __enter__(self) -> Place:
        if self.pool is None:
            self.top.mkdir(parents=True)
            if self.user:
                os.chown(self.top, self.user.record().pw_uid, self.user.record().pw_gid)
            return self
        try:
            self.pool.start()
        except Stopped:
            # It came up before the signal was acted on.
            self.pool.__exit__()
            raise
        try:
            self.enter()
        except BaseException:
            self.pool.__exit__()
            raise
        return self

    def enter(self) -> None:
        """Goes through the door, again after the pool has been started again."""
        assert self.pool
        if self.door == "fuse":
            self.top = self.pool.mount("fuse")
            if self.user and not self.pool.user:
                os.chown(self.top, self.user.record().pw_uid, self.user.record().pw_gid)
        else:
            words = ("exec", "--pool", "suites", "--client", "preload", "--", "sh", "-c", "echo $TIDEPOOL_DIR")
            self.top = Path(self.pool.command(*words).strip())
        self.mark()
        if self.run("enter", ["true"], COMMAND_SECONDS_MAX).code != 0:
            raise Failed(f"the door {self.door} leads elsewhere than into the pool")

    def mark(self) -> None:
        assert self.pool
        mark = self.pool.home / MARK
        mark.touch()
        self.pool.command("cp", "--pool", "suites", str(mark), f"pool:/{MARK}")

    def __exit__(self, *_: object) -> None:
        if self.pool:
            self.pool.__exit__()
        else:
            shutil.rmtree(self.top, ignore_errors=True)

    def words(self, argv: list[str], cwd: str) -> list[str]:
        """`argv` as a command that anybody may start. It runs in the pool, or not at all."""
        if not self.pool:
            return ["sh", "-c", 'cd -- "$1" && shift && exec "$@"', "sh", str(self.top / cwd), *argv]
        within = f'[ -e "$1" ] || {{ echo "$1 is missing: this is not the pool"; exit {NOT_THE_POOL}; }}; cd -- "$2" && shift 2 && exec "$@"'
        there = ["sh", "-c", within, "sh", str(self.top / MARK), str(self.top / cwd), *argv]
        if self.door != "preload":
            return there
        return [str(self.pool.bin / "tidepool"), "exec", "--pool", "suites", "--client", "preload", "--", *there]

    def environment(self, env: dict[str, str] | None = None) -> dict[str, str]:
        own = self.pool.environment() if self.pool else dict(os.environ)
        return {**own, "LC_ALL": "C", **(env or {})}

    def run(self, test: str, argv: list[str], seconds: float, cwd: str = ".", env: dict[str, str] | None = None) -> Ran:
        """Runs a program in a directory of the place; its output is kept as the log of a test."""
        log = self.logs / (test.replace("/", "-") + ".log")
        return run(self.words(argv, cwd), seconds, log, self.environment(env), cwd=Path("/"), user=self.user)

    def start(self, test: str, argv: list[str]) -> subprocess.Popen[bytes]:
        """Starts a program in the place that goes on; it is the process whose number is told, whatever the door."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / f"{test}.log").open("ab") as log:
            return subprocess.Popen(
                self.words(argv, "."), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment(),
                cwd="/", start_new_session=True, **(self.user.words() if self.user else {}),
            )  # fmt: skip

    def make(self, name: str) -> str:
        """A new directory, open to all, as temporary ones are."""
        ran = self.run("mkdir", ["mkdir", "-m", "1777", name], COMMAND_SECONDS_MAX)
        if ran.code != 0:
            raise Failed(f"a directory cannot be made: {ran.said.strip()}")
        return name

    def remove(self, name: str) -> None:
        self.run("rm", ["rm", "-rf", "--", name], COMMAND_SECONDS_MAX * 5)
