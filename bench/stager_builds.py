#!/usr/bin/env python3
"""What root's stager costs in two builds, in turn: submissions, small copies, a tree of small files, and copies between two stagers.

    bench/stager_builds.py --first DIR --second DIR [--rounds 5] [--files 100000] [--requests 3000] [--slowed MS] [--out FILE]

DIR holds tidepool, tidepool-staged and tidepoold of a build. Needs root, since only root's stager keeps users apart. All files are in
memory; both stagers are on this machine, so copies between them are bound by its processors. Prints a line for each measurement with the
medians, and the median of the ratios of neighbours in time (second divided by first). --slowed shows what the comparison can tell: the
first build waits so many milliseconds in each copy of the tree, of the small and of the large file; requests one by one are not slowed.
"""

import argparse
import json
import os
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LARGE = 2 << 30
PUSHED = 5_000


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Stager:
    """One of root's, with dataspaces a:// and b://."""

    def __init__(self, build: Path, place: Path, secret: str) -> None:
        self.build, self.place, self.port = build, place, free_port()
        place.mkdir()
        for name in "ab":
            (place / name).mkdir()
        (place / "secret").write_text(secret)
        (place / "secret").chmod(0o600)
        lines = [f'listen = "127.0.0.1:{self.port}"', f'secret-file = "{place}/secret"']
        for name in "ab":
            lines += ["[[dataspace]]", f'name = "{name}://"', 'kind = "local"', f'mount = "{place}/{name}"']
        (place / "stager.toml").write_text("\n".join(lines) + "\n")
        words = [build / "tidepool-staged", "--config", place / "stager.toml", "--dir", place / "run"]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.process.stdout is not None and b"ready" in self.process.stdout.readline()

    def ask(self, *words: str) -> None:
        command = [self.build / "tidepool", "stage", "--socket", self.place / "run/control.socket", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{command}: {done.stdout}{done.stderr}")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


class Build:
    """Two stagers of one build, and what is timed with them."""

    def __init__(self, build: Path, place: Path, args: argparse.Namespace, slowed: float) -> None:
        place.mkdir()
        secret = secrets.token_hex(32)
        self.build, self.args, self.slowed, self.place = build, args, slowed, place
        self.near, self.far = (Stager(build, place / name, secret) for name in ("near", "far"))
        tree = self.near.place / "a/tree"
        for number in range(args.files):
            if number % 1000 == 0:
                (tree / str(number // 1000)).mkdir(parents=True)
            (tree / str(number // 1000) / str(number)).write_bytes(b"x" * 4096)
        few = self.near.place / "a/few"
        few.mkdir()
        for number in range(min(PUSHED, args.files)):
            (few / str(number)).write_bytes(b"x" * 4096)
        with (self.near.place / "a/large").open("wb") as file:
            for _ in range(LARGE >> 20):
                file.write(os.urandom(1 << 20))

    def timed(self, *words: str) -> float:
        began = time.perf_counter()
        time.sleep(self.slowed)
        self.near.ask("submit", "--wait", *words)
        return time.perf_counter() - began

    def clear(self) -> None:
        for stager in (self.near, self.far):
            for entry in (stager.place / "b").iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def bench(self) -> dict[str, float]:
        words = ["bench", "stager", "--work", "submit,copy,both", "--clients", "1,8"]
        words += ["--requests", str(self.args.requests), "--repeats", "1", "--json"]
        words += ["--dir", self.place / "bench"]
        shutil.rmtree(self.place / "bench", ignore_errors=True)
        (self.place / "bench").mkdir()
        path = f"{self.build}:{os.environ['PATH']}"
        done = subprocess.run(
            [self.build / "tidepool", *words], capture_output=True, text=True, check=True, env=dict(os.environ, PATH=path)
        )
        found = {}
        for row in json.loads(done.stdout)["samples"]:
            found[f"{row['work']}, {row['clients']} clients: per second"] = row["per_second"]
        return found

    def round(self) -> dict[str, float]:
        far = f"127.0.0.1:{self.far.port}"
        found = {f"tree of {self.args.files} files: s": self.timed("copy", "a://tree", "b://tree")}
        self.clear()
        found[f"{min(PUSHED, self.args.files)} small files to the other stager: s"] = self.timed(
            "copy", "a://few", f"{far}/b://few"
        )
        found["2 GiB to the other stager: GiB/s"] = 2 / self.timed("copy", "a://large", f"{far}/b://large")
        self.near.ask("submit", "--wait", "copy", f"{far}/b://large", "b://back")
        self.clear()
        return found | self.bench()

    def stop(self) -> None:
        self.near.stop()
        self.far.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=Path, required=True)
    parser.add_argument("--second", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--slowed", type=float, default=0, metavar="MS")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="tidepool-stagers-", dir="/dev/shm"))
    samples: dict[str, list[list[float]]] = {}
    try:
        builds = [
            Build(build.resolve(), work / name, args, slowed)
            for build, name, slowed in ((args.first, "1", args.slowed / 1000), (args.second, "2", 0))
        ]
        for number in range(args.rounds):
            pair = [builds[at].round() for at in ((0, 1) if number % 2 == 0 else (1, 0))]
            first, second = pair if number % 2 == 0 else reversed(pair)
            for what, value in first.items():
                samples.setdefault(what, []).append([value, second[what]])
                print(f"{number}: {what}: {value:.3f}, {second[what]:.3f}", file=sys.stderr)
        for build in builds:
            build.stop()
    finally:
        shutil.rmtree(work)
    for what, pairs in samples.items():
        medians = [statistics.median(pair[at] for pair in pairs) for at in (0, 1)]
        ratio = statistics.median(pair[1] / pair[0] for pair in pairs)
        print(f"{what}: {medians[0]:.3f}, {medians[1]:.3f}; ratio {ratio:.3f}")
    if args.out:
        text = {"command": sys.argv, "samples": samples}
        args.out.write_text(json.dumps(text, indent=1) + "\n")


main()
