#!/usr/bin/env python3
"""PHOLD under each scheduler, one thread and two, in turn.

  bench/phold.py --bin DIR [--repeats 5] [--seconds 0.5] [--out FILE]

DIR holds tidepool. Every round runs each case once, so that what else happens on the machine meets all alike. --seconds is virtual
time. The file has what every single run told; the table medians, and the ratio of two threads to one by the median over the
rounds. Cases of one workload must have the same trace.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

WORKLOADS = {
    "usual": ["--lookahead", "100us", "--mean", "900us", "--remote", "0.25"],
    "no lookahead": ["--lookahead", "1ns", "--mean", "1ms", "--remote", "0.1"],
    "few processes": ["--lookahead", "1us", "--mean", "999us", "--remote", "1", "--processes", "64"],
}
SCHEDULERS = [("sequential", 1), ("conservative", 1), ("conservative", 2), ("optimistic", 1), ("optimistic", 2)]


def run(tidepool: Path, workload: str, scheduler: str, threads: int, seconds: float) -> dict:
    # As many events in each workload would take too long with few processes.
    virtual = f"{int(seconds * (10 if workload == 'few processes' else 1) * 1e9)}ns"
    words = ["sim", "phold", "--json", "--scheduler", scheduler, "--threads", str(threads), "--end", virtual]
    done = subprocess.run([tidepool, *words, *WORKLOADS[workload]], check=True, capture_output=True, text=True)
    told = json.loads(done.stdout)
    # Where it lies is this machine's matter.
    told["command"][0] = tidepool.name
    return {"workload": workload, **told}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    cases = [(workload, *scheduler) for workload in WORKLOADS for scheduler in SCHEDULERS]
    runs: dict = {case: [] for case in cases}
    for number in range(args.repeats):
        for case in cases if number % 2 == 0 else reversed(cases):
            runs[case].append(run(args.bin / "tidepool", *case, args.seconds))
    for workload in WORKLOADS:
        traces = {told["result"]["trace"] for case in cases if case[0] == workload for told in runs[case]}
        if len(traces) != 1:
            print(f"{workload}: schedulers disagree: {traces}", file=sys.stderr)
            return 1
    print("| workload | scheduler | threads | M events/CPU-s | M events/s | two threads to one | efficiency |\n|---|---|---|---|---|---|---|")
    for case in cases:
        results = [told["result"] for told in runs[case]]
        medians = [statistics.median(r[key] for r in results) / 1e6 for key in ("events_per_cpu_second", "events_per_second")]
        ratio = ""
        if case[2] == 2:
            ones = [told["result"]["events_per_second"] for told in runs[(*case[:2], 1)]]
            ratio = f"{statistics.median(two['events_per_second'] / one for two, one in zip(results, ones)):.2f}"
        efficiency = statistics.median(r["efficiency"] for r in results) * 100
        print(f"| {' | '.join(map(str, case))} | {medians[0]:.2f} | {medians[1]:.2f} | {ratio} | {efficiency:.1f} % |")
    if args.out:
        load = os.getloadavg()
        all_runs = [told for case in cases for told in runs[case]]
        args.out.write_text(json.dumps({"bench": "phold", "load": load, "repeats": args.repeats, "runs": all_runs}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
