#!/usr/bin/env python3
"""What Tidepool's parts in Slurm cost jobs that do not use them (INVENTORY A4), and what a pool adds to those that do.

Two clusters of integrations/slurm/test-cluster run side by side, one with Tidepool's plug-ins, prolog and epilog, one without.
Jobs of an ordinary user go to them in turn. Needs root and scripts/install-packages slurm.

  bench/slurm_latency.py --bin target/release [--jobs 50] [--pools 10] [--slowed MS] [--out FILE]

--slowed shows what the comparison can tell: it makes the prolog that comes with the plug-ins take so much longer.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CLUSTER = Path(__file__).resolve().parent.parent / "integrations" / "slurm" / "test-cluster"


def cluster(*words, **options):
    return subprocess.run([str(CLUSTER), *map(str, words)], check=True, text=True, capture_output=True, **options)


def seconds(directory, words):
    """Wall time of one command of alice's in a cluster."""
    began = time.monotonic()
    cluster("exec", "-u", "alice", directory, *words, cwd="/")
    return time.monotonic() - began


def in_turn(kinds, repeats):
    """Runs each kind once, then each again, and so on; the times of each."""
    times = {name: [] for name in kinds}
    for _ in range(repeats):
        for name, run in kinds.items():
            times[name].append(run())
    return times


def slow_down(script, by):
    first, rest = script.read_text().split("\n", 1)
    script.write_text(f"{first}\nsleep {by}\n{rest}")


def told(times):
    quartiles = statistics.quantiles(times, n=4)
    return {"median": statistics.median(times), "quartiles": [quartiles[0], quartiles[2]], "seconds": times}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=Path)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--pools", type=int, default=10)
    parser.add_argument("--slowed", type=int, default=0, metavar="MS")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("slurm_latency: needs root")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as base:
        os.chmod(base, 0o755)
        programs = Path(base) / "bin"
        programs.mkdir()
        for name in ["tidepool", "tidepoold", "tidepool-staged", "libtidepool_preload.so"]:
            (programs / name).write_bytes((args.bin / name).read_bytes())
            (programs / name).chmod(0o755)
        without, with_ = Path(base) / "without", Path(base) / "with"
        cluster("start", without, 4)
        cluster("start", "--bin", programs, with_, 4)
        if args.slowed:
            slow_down(with_ / "libexec" / "prolog", args.slowed / 1000)
        try:
            srun = ["srun", "-N4", "true"]
            plain = in_turn(
                {
                    "srun, without": lambda: seconds(without, srun),
                    "srun, with": lambda: seconds(with_, srun),
                },
                args.jobs,
            )
            empty = ["srun", "-Q", "-N4", "--workflow-start", "true"]
            pool = ["srun", "-Q", "-N4", "--tidepool=client=fuse", "true"]
            pools = in_turn(
                {
                    "burst buffer with nothing in it": lambda: seconds(with_, empty),
                    "pool on four nodes": lambda: seconds(with_, pool),
                },
                args.pools,
            )
        finally:
            cluster("stop", without)
            cluster("stop", with_)
    result = {name: told(times) for name, times in {**plain, **pools}.items()}
    for name, of in result.items():
        print(f"{name:32} median {of['median']:.3f} s, quartiles {of['quartiles'][0]:.3f} to {of['quartiles'][1]:.3f} s")
    ratio = result["srun, with"]["median"] / result["srun, without"]["median"]
    print(f"a job without directives takes {ratio:.3f} times as long with Tidepool's parts")
    more = result["pool on four nodes"]["median"] - result["burst buffer with nothing in it"]["median"]
    print(f"a pool on four nodes adds {more:.3f} s")
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
