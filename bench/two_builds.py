#!/usr/bin/env python3
"""What a part of the daemon costs one process that writes without a pause: two builds, a pool of each, in turn.

Both pools lie on three directories in memory (own storage, burst buffer, parallel file system); their writers are processes that
stay, so that nothing but the writing is timed. INVENTORY K2: the build without the runtime is one whose `Tiering::note` returns at
once and whose scheduler does not look.

  bench/two_builds.py --first DIR --second DIR [--bytes 65536] [--blocks 2048] [--rounds 60] [--pairs 12] [--pin] [--slowed NS] [--out FILE]

DIR holds tidepool, tidepoold and libtidepool_preload.so of a build. --slowed shows what the comparison can tell: the first writer
loses so many nanoseconds at each write. Two pools of one build may differ by a percent or two as long as they live; so there are several
pairs of new ones, and each build is the first to start in every other. A pair's ratio is the median of those of neighbours in time; told
is the median of the pairs, with the interval that 95 of 100 draws of the same pairs fall into.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

DRAWS = 1000
WRITER = """
import os, sys, time
size, blocks, slowed = map(int, sys.argv[1:])
block, file = b"x" * size, os.open(os.environ["TIDEPOOL_DIR"] + "/f", os.O_CREAT | os.O_RDWR, 0o644)
def go():
    began = time.perf_counter_ns()
    for number in range(blocks):
        os.pwrite(file, block, number * size)
        if slowed:
            until = time.perf_counter_ns() + slowed
            while time.perf_counter_ns() < until:
                pass
    return time.perf_counter_ns() - began
go()
print("ready", flush=True)
for _ in sys.stdin:
    print(go(), flush=True)
"""


class Pool:
    """A pool of one daemon, and a process that writes to it whenever it is told to."""

    def __init__(self, build: Path, args: argparse.Namespace, slowed: int) -> None:
        self.command = str(build / "tidepool")
        self.dir = tempfile.mkdtemp(prefix="tidepool-builds-", dir="/dev/shm")
        self.environment = dict(os.environ, TIDEPOOL_RUNTIME=f"{self.dir}/run")
        dirs = {name: f"{self.dir}/{name}" for name in ("store", "burst", "pfs")}
        for path in dirs.values():
            os.mkdir(path)
        # Next to nothing is flushed beside.
        words = ["pool", "start", "--name", "builds", "--local", "--nodes", "1", "--client", "preload", "--strategy", "hp"]
        words += ["--flush-bandwidth", "1", *(word for name, path in dirs.items() for word in (f"--{name}", path))]
        subprocess.run([self.command, *words], env=self.environment, check=True, stdout=subprocess.DEVNULL)
        numbers = [str(number) for number in (args.bytes, args.blocks, slowed)]
        writer = [self.command, "exec", "--pool", "builds", "--client", "preload", "--", sys.executable, "-c", WRITER, *numbers]
        pipe = subprocess.PIPE
        self.writer = subprocess.Popen(writer, env=self.environment, stdin=pipe, stdout=pipe, text=True)
        if self.writer.stdout.readline() != "ready\n":
            raise SystemExit("the writer did not start; its message is above")
        if args.pin:
            self.pin()

    def pin(self) -> None:
        """The writer to one core, the daemon to another: some kernels put both on one where they find it free."""
        one, other, *_ = sorted(os.sched_getaffinity(0))
        daemon = next(pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self.is_daemon(pid))
        for pid, core in ((self.writer.pid, one), (daemon, other)):
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), [core])

    def is_daemon(self, pid: int) -> bool:
        try:
            name, said = (Path(f"/proc/{pid}/{what}").read_bytes() for what in ("comm", "environ"))
        except OSError:
            return False
        return name.startswith(b"tidepoold") and f"{self.dir}/run".encode() in said

    def seconds(self) -> float:
        self.writer.stdin.write("go\n")
        self.writer.stdin.flush()
        return int(self.writer.stdout.readline()) / 1e9

    def end(self) -> None:
        self.writer.stdin.close()
        self.writer.wait()
        subprocess.run([self.command, "pool", "stop", "--pool", "builds"], env=self.environment, stdout=subprocess.DEVNULL)
        shutil.rmtree(self.dir, ignore_errors=True)


def interval(ratios: list[float]) -> list[float]:
    """Where the median may lie, by drawing from the same rounds again."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
    return [medians[DRAWS * 25 // 1000], medians[DRAWS * 975 // 1000]]


def pair(args: argparse.Namespace, first: int) -> list[list[float]]:
    """Seconds of the rounds of both builds, of two new pools; `first` is started first."""
    pools: dict[int, Pool] = {}
    times: list[list[float]] = [[], []]
    try:
        for which in (first, 1 - first):
            pools[which] = Pool((args.first, args.second)[which], args, 0 if which else args.slowed)
        for number in range(args.rounds):
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                times[which].append(pools[which].seconds())
    finally:
        for pool in pools.values():
            pool.end()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=Path, required=True, metavar="DIR")
    parser.add_argument("--second", type=Path, required=True, metavar="DIR")
    parser.add_argument("--bytes", type=int, default=65536, metavar="N", help="of a write (default %(default)s)")
    parser.add_argument("--blocks", type=int, default=2048, metavar="N", help="writes of a round (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=60, metavar="N", help="of a pair (default %(default)s)")
    parser.add_argument("--pairs", type=int, default=12, metavar="N", help="of pools (default %(default)s)")
    parser.add_argument("--pin", action="store_true", help="writers on one core, daemons on another")
    parser.add_argument("--slowed", type=int, default=0, metavar="NS")
    parser.add_argument("--out", type=Path, metavar="FILE", help="all times, as JSON")
    args = parser.parse_args()
    pairs = [pair(args, first=number % 2) for number in range(args.pairs)]
    ratios = [statistics.median(one / other for one, other in zip(*times)) for times in pairs]
    medians = [1e6 * statistics.median(time for times in pairs for time in times[which]) / args.blocks for which in (0, 1)]
    found = {"us_per_write": medians, "ratio": statistics.median(ratios), "interval": interval(ratios), "ratios": ratios}
    print(f"{medians[0]:.3f} and {medians[1]:.3f} us a write; ratio {found['ratio']:.4f}, {found['interval'][0]:.4f} to {found['interval'][1]:.4f}")
    if args.out:
        shape = {"bytes": args.bytes, "blocks": args.blocks, "slowed_ns": args.slowed, "pinned": args.pin}
        args.out.write_text(json.dumps(shape | found | {"first_s": [p[0] for p in pairs], "second_s": [p[1] for p in pairs]}))


if __name__ == "__main__":
    main()
