"""F25: random access to a file per process, by transfer size, and how it compares with sequential access."""

from __future__ import annotations

import statistics

import filedata
import figures
from harness import Result, Sample, Setting, pick

TITLE = "random access, a file per process"
# What counts as the same for transfers of a chunk and more.
SAME = 0.15


def measure(setting: Setting) -> Result:
    result = Result("bytes of a transfer")
    for store in setting.stores():
        samples = filedata.bench(setting, store, "sequential,random")
        filedata.add(result, samples, store, "random")
        for phase in filedata.PHASES:
            for size in filedata.SIZES:
                ratios = [
                    r / s
                    for r, s in zip(*(bandwidths(samples, order, size, phase) for order in ("random", "sequential")))
                ]
                result.add(f"{phase}, random/sequential", f"pool on {store.type}", size, "ratio", ratios)
                tell(result, f"{phase} on {store.type}", size, statistics.fmean(ratios))
    result.findings.append(result.widest())
    return result


def bandwidths(samples: list[Sample], order: str, size: int, phase: str) -> list[float]:
    return [s.bandwidth() for s in pick(samples, case=filedata.case(order, size), side="pool", phase=phase)]


def tell(result: Result, what: str, size: int, ratio: float) -> None:
    if size >= filedata.CHUNK:
        verdict = "the same as sequential" if abs(ratio - 1) <= SAME else f"NOT within {100 * SAME:.0f} % of sequential"
        result.findings.append(f"random {what}, {figures.size_name(size)}: {ratio:.2f} of sequential, {verdict}")
    elif size == min(filedata.SIZES):
        result.findings.append(
            f"random {what}, {figures.size_name(size)}: {100 * (ratio - 1):+.0f} % against sequential (GekkoFS on 512 nodes: "
            f"{'-33' if what.startswith('write') else '-60'} %)"
        )


def draw(report: dict, rows: list[dict]):
    figure, axes = filedata.draw(report, rows, "random", more=len(filedata.PHASES))
    names = {float(size): figures.size_name(size) for size in filedata.SIZES}
    for one, phase in zip(axes[-len(filedata.PHASES) :], filedata.PHASES):
        figures.bars(one, rows, f"{phase}, random/sequential", report["x_label"], names)
        figures.limit(one, 1, "as fast as sequential")
    figures.legend_below(figure, axes)
    return figure
