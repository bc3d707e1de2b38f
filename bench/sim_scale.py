#!/usr/bin/env python3
"""The scale study of the storage simulator under each scheduler, one thread and two, in turn; then a million processes.

  bench/sim_scale.py --bin DIR [--repeats 5] [--reads 16] [--no-million] [--out FILE]

DIR holds tidepool. Every round runs each case once, so that what else happens on the machine meets all alike. The file has what every
single run told; the table medians. All cases of the study must have the same trace.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

SCHEDULERS = [("sequential", 1), ("conservative", 1), ("conservative", 2), ("optimistic", 1), ("optimistic", 2)]
MILLION = ["--clients", "999000", "--servers", "500", "--reads", "1"]


def run(tidepool: Path, scheduler: str, threads: int, words: list[str]) -> dict:
    command = [tidepool, "sim", "scale", "--json", "--scheduler", scheduler, "--threads", str(threads), *words]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    # Where it lies is this machine's matter.
    told["command"][0] = tidepool.name
    return told


def row(name: str, threads: int, runs: list[dict]) -> str:
    results = [told["result"] for told in runs]
    median = lambda key: statistics.median(result[key] for result in results)  # noqa: E731
    rates = f"{median('events_per_cpu_second') / 1e6:.2f} | {median('events_per_second') / 1e6:.2f}"
    memory = f"{median('memory_peak_bytes') / (1 << 20):.0f} MiB"
    return f"| {name} | {threads} | {results[0]['processes']} | {results[0]['events']} | {rates} | {median('wall_seconds'):.2f} s | {memory} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--reads", type=int, default=16)
    parser.add_argument("--no-million", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    runs: dict = {case: [] for case in SCHEDULERS}
    for number in range(args.repeats):
        for case in SCHEDULERS if number % 2 == 0 else reversed(SCHEDULERS):
            runs[case].append(run(args.bin / "tidepool", *case, ["--reads", str(args.reads)]))
    traces = {told["result"]["trace"] for case in SCHEDULERS for told in runs[case]}
    if len(traces) != 1:
        print(f"schedulers disagree: {traces}", file=sys.stderr)
        return 1
    million = [] if args.no_million else [run(args.bin / "tidepool", "sequential", 1, MILLION)]
    print("| scheduler | threads | processes | events | M events/CPU-s | M events/s | run time | memory |\n|---|---|---|---|---|---|---|---|")
    for case in SCHEDULERS:
        print(row(*case, runs[case]))
    if million:
        print(row("sequential", 1, million))
    if args.out:
        all_runs = [told for case in SCHEDULERS for told in runs[case]] + million
        kept = {"bench": "sim-scale", "load": os.getloadavg(), "repeats": args.repeats, "runs": all_runs}
        args.out.write_text(json.dumps(kept, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
