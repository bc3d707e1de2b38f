"""F22: create, stat and remove empty files, one directory and a directory per process, beside local file systems."""

from __future__ import annotations

import os
import statistics

import figures
from harness import Result, Sample, Setting, pick
from metadata import CASES, PHASES

TITLE = "creates, stats and removes of empty files"
NODES_MODELLED = (1, 8, 64, 512)
# GekkoFS on 512 nodes of MOGON II with 16 processes each.
PUBLISHED = {"create": 46e6, "stat": 44e6, "remove": 22e6}
SERIES_MODELLED = "pool, a node per daemon"
MODEL = (
    "Each node brings one daemon and the cores of this machine. An operation costs the processor time that it costs "
    "client and daemon here through sockets (TIDEPOOL_TRANSPORT=socket, one directory), and no more; load is even. "
    "So operations/s = nodes x cores / (client + daemon seconds per operation). Network, its latency and uneven load "
    "are left out: this is a bound from above, not a forecast."
)


def measure(setting: Setting) -> Result:
    counts, procs, files = ([1, 2], 2, 1_500) if setting.quick else ([1, 2, 4, 8], 4, 100_000)
    result = Result("daemons on this machine, or nodes (modelled)")
    result.details.update(processes=procs, files_per_process=files)
    # A journal can make files on a disk very slow, and the line of a local file system is flat anyway.
    for store, store_counts in ((setting.memory, counts), (setting.disk, [counts[0], counts[-1]])):
        for count in store_counts:
            samples = setting.bench("md", store, count, "--procs", str(procs), "--files", str(files))
            for case, name in CASES.items():
                for phase in PHASES:
                    add(
                        result,
                        phase,
                        f"pool on {store.type}, {name}",
                        count,
                        pick(samples, case=case, side="pool", phase=phase),
                    )
                    add(
                        result,
                        phase,
                        f"{store.type}, {name}",
                        count,
                        pick(samples, case=case, side="native", phase=phase),
                    )
        compare(result, store.type, store_counts)
    through_sockets = setting.bench(
        "md",
        setting.memory,
        counts[-1],
        "--procs",
        str(procs),
        "--files",
        str(files),
        env={"TIDEPOOL_TRANSPORT": "socket"},
    )
    model(setting, result, through_sockets)
    result.findings.append(result.widest())
    return result


def add(result: Result, phase: str, series: str, x: int, samples: list[Sample]) -> None:
    result.add(phase, series, x, "operations/s", [s.rate() for s in samples])


def compare(result: Result, kind: str, counts: list[int]) -> None:
    for phase in PHASES:
        one, each = (f"pool on {kind}, {name}" for name in CASES.values())
        ratios = [result.mean(phase, one, n) / result.mean(phase, each, n) for n in counts]
        told = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        native = result.mean(phase, one, counts[-1]) / result.mean(phase, f"{kind}, one directory", counts[-1])
        result.findings.append(
            f"{phase} on {kind}: one directory is {told} times as fast as a directory each (by number of daemons); "
            f"a pool of {counts[-1]} is {native:.2f} times as fast as {kind} itself"
        )


def model(setting: Setting, result: Result, samples: list[Sample]) -> None:
    cores = len(os.sched_getaffinity(0))
    result.model = MODEL
    for phase in PHASES:
        found = pick(samples, case="one shared directory", side="pool", phase=phase)
        cost = statistics.fmean((s.client_cpu + s.daemon_cpu) / s.operations for s in found)
        result.details[f"microseconds per {phase} through sockets"] = cost * 1e6
        for nodes in NODES_MODELLED:
            result.add(phase, SERIES_MODELLED, nodes, "operations/s", [nodes * cores / cost], "modelled")
        result.add(phase, "GekkoFS, 512 nodes of 20 cores", 512, "operations/s", [PUBLISHED[phase]], "published")


def draw(report: dict, rows: list[dict]):
    figure, axes = figures.panels(len(PHASES), height=5.4)
    for one, phase in zip(axes, PHASES):
        figures.lines(one, rows, phase, report["x_label"], log_x=True, log_y=True)
    figures.legend_below(figure, axes, columns=3)
    return figure
