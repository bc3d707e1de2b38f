#!/usr/bin/env python3
"""The scale study of the storage simulator (S1, Figure 6) against threads and against ranks of MPI.

  bench/sim_ranks.py --bin DIR [--most 2] [--repeats 3] [--reads 16] [--phold] [--out FILE] [--plot FILE]
  bench/sim_ranks.py --read FILE --plot FILE

DIR holds a tidepool with MPI. Each round runs each case once: sequential, then each scheduler with 1 to --most threads and ranks, doubled
each time. --phold: PHOLD with 8192 processes and the usual delays instead. All cases must have the same trace. The file has what each run told,
the table medians; the plot shows them beside what the paper has.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

# S1 §IV-C: the least and the most of runs with 2 to 256 MPI processes, events/s of its own events.
PAPER = (10_082.1, 65_438.4)
PAPER_PROCESSES = (2, 256)
SCHEDULERS = ("conservative", "optimistic")


def cases(most: int) -> list[tuple[str, int, int]]:
    """Scheduler, threads, ranks; 0: not under MPI."""
    counts = [1 << power for power in range(most.bit_length())]
    found = [("sequential", 1, 0)]
    for name in SCHEDULERS:
        found += [(name, threads, 0) for threads in counts] + [(name, 1, ranks) for ranks in counts]
    return found


def run(tidepool: Path, case: tuple[str, int, int], words: list[str]) -> dict:
    name, threads, ranks = case
    command = [tidepool, "sim", *words, "--json", "--scheduler", name, "--threads", str(threads)]
    if ranks:
        command = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), *command, "--mpi"]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    told["command"][0] = tidepool.name
    told["case"] = {"scheduler": name, "threads": threads, "ranks": ranks}
    return told


def medians(runs: list[dict]) -> list[dict]:
    found: dict = {}
    for told in runs:
        found.setdefault(tuple(told["case"].values()), []).append(told["result"])
    rows = []
    for (scheduler, threads, ranks), results in found.items():
        median = lambda key: statistics.median(result[key] for result in results)  # noqa: E731
        rows.append({
            "scheduler": scheduler, "threads": threads, "ranks": ranks,
            "events": results[0]["events"], "rounds": results[0]["rounds"],
            "rate": median("events_per_second"), "seconds": median("wall_seconds"),
        })
    return rows


def table(rows: list[dict]) -> None:
    print("| scheduler | threads | ranks | events | rounds | M events/s | run time |\n|---|---|---|---|---|---|---|")
    for row in rows:
        ranks = row["ranks"] or "no MPI"
        print(f"| {row['scheduler']} | {row['threads']} | {ranks} | {row['events']} | {row['rounds']} | {row['rate'] / 1e6:.3f} | {row['seconds']:.2f} s |")


def plot(rows: list[dict], file: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    # The same bytes for the same runs.
    matplotlib.rcParams["svg.hashsalt"] = "tidepool"
    import matplotlib.pyplot as plt

    figure, (rate, seconds) = plt.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
    for name in ("sequential", *SCHEDULERS):
        for kind, style in (("threads", "o-"), ("ranks", "s--")):
            points = [row for row in rows if row["scheduler"] == name and (row["ranks"] > 0) == (kind == "ranks")]
            if points:
                many = [row["threads"] * max(row["ranks"], 1) for row in points]
                rate.plot(many, [row["rate"] for row in points], style, label=f"{name}, {kind}")
                seconds.plot(many, [row["seconds"] for row in points], style, label=f"{name}, {kind}")
    rate.fill_between(PAPER_PROCESSES, *[[bound] * 2 for bound in PAPER], alpha=0.2, color="gray", label="paper, 2 to 256 processes (its own events)")
    for axes, what in ((rate, "events/s"), (seconds, "run time, s")):
        axes.set(xscale="log", yscale="log", xlabel="threads or ranks", ylabel=what)
        axes.set_xscale("log", base=2)
    rate.legend(fontsize=7)
    figure.savefig(file, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path)
    parser.add_argument("--read", type=Path)
    parser.add_argument("--most", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--reads", type=int, default=16)
    parser.add_argument("--phold", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    if (args.bin is None) == (args.read is None):
        parser.error("--bin or --read")
    if args.read:
        runs = json.loads(args.read.read_text())["runs"]
    else:
        words = ["phold", "--end", "200ms"] if args.phold else ["scale", "--reads", str(args.reads)]
        all_cases, runs = cases(args.most), []
        for number in range(args.repeats):
            for case in all_cases if number % 2 == 0 else reversed(all_cases):
                runs.append(run(args.bin / "tidepool", case, words))
        runs.sort(key=lambda told: all_cases.index(tuple(told["case"].values())))
    traces = {told["result"]["trace"] for told in runs}
    if len(traces) != 1:
        print(f"schedulers disagree: {traces}", file=sys.stderr)
        return 1
    rows = medians(runs)
    table(rows)
    if args.out:
        kept = {"bench": "sim-ranks", "load": os.getloadavg(), "repeats": args.repeats, "runs": runs}
        args.out.write_text(json.dumps(kept, indent=1) + "\n")
    if args.plot:
        plot(rows, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
