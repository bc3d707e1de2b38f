"""F23: metadata operations while others use the machine's network and cores."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import figures
from harness import Failed, Result, Setting, pick, sd_percent
from metadata import PHASES

TITLE = "creates, stats and removes beside background traffic"
TRAFFIC = Path(__file__).resolve().parent / "traffic.py"
QUIET = "undisturbed"
# Megabytes per second of the other job's streams, in all; 0 for as many as go through.
LEVELS = {"100 MB/s beside it": 100, "500 MB/s beside it": 500, "unlimited traffic beside it": 0}


class Traffic:
    """A TCP stream over the loopback, from another process to a third, for the time of a `with`."""

    def __init__(self, megabytes: int) -> None:
        self.megabytes = megabytes
        self.moved = 0.0

    def __enter__(self) -> Traffic:
        command = [sys.executable, str(TRAFFIC), str(self.megabytes)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "flowing\n":
            raise Failed("the background traffic did not start; its message is above")
        self.began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        told, _ = self.process.communicate()
        self.moved = float(told) / (time.monotonic() - self.began) / 1e6


def measure(setting: Setting) -> Result:
    counts, procs, files = ([2], 2, 1_500) if setting.quick else ([1, 4, 8], 4, 50_000)
    result = Result("daemons on this machine")
    result.details.update(processes=procs, files_per_process=files)
    work = ("--procs", str(procs), "--files", str(files))
    moved: dict[str, list[float]] = {name: [] for name in LEVELS}
    for count in counts:
        found: dict[tuple[str, str], list[float]] = {}
        # In turn, so that what else happens on the machine meets all alike.
        for _ in range(setting.repeats):
            for series, megabytes in {QUIET: None, **LEVELS}.items():
                with Traffic(megabytes) if megabytes is not None else nullcontext() as traffic:
                    samples = setting.bench("md", setting.memory, count, *work, repeats=1)
                if traffic:
                    moved[series].append(traffic.moved)
                for phase in PHASES:
                    picked = pick(samples, case="one shared directory", side="pool", phase=phase)
                    found.setdefault((phase, series), []).extend(s.rate() for s in picked)
        for (phase, series), values in found.items():
            result.add(phase, series, count, "operations/s", values)
        compare(result, count)
    result.details["traffic that flowed, MB/s"] = {name: statistics.fmean(values) for name, values in moved.items()}
    result.findings.append(result.widest())
    return result


def compare(result: Result, count: int) -> None:
    for phase in PHASES:
        quiet = next(r for r in result.rows if (r.what, r.series, r.x) == (phase, QUIET, count))
        told = []
        for series in LEVELS:
            row = next(r for r in result.rows if (r.what, r.series, r.x) == (phase, series, count))
            change = 100 * (statistics.fmean(row.values) / statistics.fmean(quiet.values) - 1)
            noise = max(sd_percent(row.values) or 0, sd_percent(quiet.values) or 0)
            told.append(
                f"{change:+.0f} % with {series}" + (" (within one standard deviation)" if abs(change) < noise else "")
            )
        result.findings.append(f"{phase}, {count} daemon(s): {', '.join(told)}")


def draw(report: dict, rows: list[dict]):
    figure, axes = figures.panels(len(PHASES))
    for one, phase in zip(axes, PHASES):
        figures.bars(one, rows, phase, report["x_label"])
    figures.legend_below(figure, axes)
    return figure
