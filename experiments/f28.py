"""F28: strong scaling: the same bytes by more and more processes."""

from __future__ import annotations

import os
import statistics
from itertools import pairwise

import figures
from harness import Result, Sample, Setting, pick, sd_percent

TITLE = "strong scaling: the same bytes by more processes"
PATTERNS = {
    "sequential, a file per process": "file per process, sequential",
    "random, a file per process": "file per process, random",
    "sequential, one shared file": "shared file, sequential",
}
PHASES = ("write", "read")
# Cores in use from which on a phase counts as limited by the processor.
BUSY = 0.85


def measure(setting: Setting) -> Result:
    counts, megabytes, transfer = ([1, 2, 4], 128, "4MiB") if setting.quick else ([1, 2, 4, 8, 16], 4096, "64MiB")
    cores = len(os.sched_getaffinity(0))
    # Fewer processes than cores cannot keep them busy.
    counts = counts if counts[-1] >= cores else [*counts, cores]
    size = transfer.replace("MiB", ".0 MiB")
    daemons = 2 if setting.quick else 4
    setting.fewer_repeats(3)
    setting.need_space(setting.memory, megabytes << 20)
    result = Result("processes")
    result.details.update(total_mib=megabytes, transfer=transfer, daemons=daemons)
    busy: dict[tuple[str, str], list[float]] = {}
    for count in counts:
        each = f"{megabytes // count}MiB"
        samples: list[Sample] = []
        for layout, orders in (("files", "sequential,random"), ("shared", "sequential")):
            samples += setting.bench(
                "io",
                setting.memory,
                daemons,
                "--procs",
                str(count),
                "--file-size",
                each,
                "--sizes",
                transfer,
                "--layouts",
                layout,
                "--orders",
                orders,
            )
        for what, case in PATTERNS.items():
            for phase in PHASES:
                pool = pick(samples, case=f"{case}, {size}", side="pool", phase=phase)
                native = pick(samples, case=f"{case}, {size}", side="native", phase=phase)
                result.add(what, f"pool, {phase}", count, "MiB/s", [s.bandwidth() for s in pool])
                result.add(what, f"store itself, {phase}", count, "MiB/s", [s.bandwidth() for s in native])
                if count >= cores:
                    used = ((s.client_cpu + s.daemon_cpu) / s.synced_seconds for s in pool)
                    busy.setdefault((what, phase), []).extend(used)
    for what in PATTERNS:
        explain(result, what, counts, busy)
    result.findings.append(result.widest())
    return result


def explain(result: Result, what: str, counts: list[int], busy: dict[tuple[str, str], list[float]]) -> None:
    """Text from the numbers: peak, reads in relation to writes, and where the limit lies."""
    cores = len(os.sched_getaffinity(0))
    mean = {
        (side, phase): [result.mean(what, f"{side}, {phase}", n) for n in counts]
        for side in ("pool", "store itself")
        for phase in PHASES
    }
    for phase in PHASES:
        peak = max(mean["store itself", phase])
        best = max(mean["pool", phase])
        result.findings.append(
            f"{what}, {phase}: at most {best:.0f} MiB/s, {100 * best / peak:.0f} % of the store's own peak of {peak:.0f} MiB/s"
        )
        dips(result, what, phase, counts)
    ratio = {
        side: statistics.fmean(r / w for r, w in zip(mean[side, "read"], mean[side, "write"]))
        for side in ("pool", "store itself")
    }
    used = {phase: statistics.fmean(busy[what, phase]) for phase in PHASES}
    result.details[f"cores in use, {what}"] = used
    follows = abs(ratio["pool"] / ratio["store itself"] - 1) <= 0.25
    reason = (
        "reads and writes differ as they do on the store itself, so the pool adds about the same to both"
        if follows
        else "the pool slows "
        + ("writes" if ratio["pool"] > ratio["store itself"] else "reads")
        + " more than the other side"
    )
    bound = [phase for phase in PHASES if used[phase] >= BUSY * cores]
    limited = (
        f"{' and '.join(bound)} keep the processor busy, which limits them"
        if bound
        else "neither keeps all cores busy: waiting, or other work on this machine, limits them"
    )
    result.findings.append(
        f"{what}: read/write = {ratio['pool']:.2f} in the pool, {ratio['store itself']:.2f} on the store itself: {reason}; "
        f"cores in use of {cores}, with as many processes or more: write {used['write']:.2f}, read {used['read']:.2f}: {limited}"
    )


def dips(result: Result, what: str, phase: str, counts: list[int]) -> None:
    """A dip is a fall by more than the standard deviations of its two ends."""
    rows = {r.x: r for r in result.rows if r.what == what and r.series == f"pool, {phase}"}
    for before, after in pairwise(counts):
        a, b = statistics.fmean(rows[before].values), statistics.fmean(rows[after].values)
        noise = (sd_percent(rows[before].values) or 0) + (sd_percent(rows[after].values) or 0)
        fall = 100 * (1 - b / a)
        if fall > max(noise, 5):
            result.findings.append(
                f"{what}, {phase}: falls by {fall:.0f} % from {before} to {after} processes (standard deviations {noise:.0f} %)"
            )


def draw(report: dict, rows: list[dict]):
    figure, axes = figures.panels(len(PATTERNS))
    for one, what in zip(axes, PATTERNS):
        figures.lines(one, rows, what, report["x_label"], log_x=True)
        for phase, color in zip(PHASES, ("#555555", "#aaaaaa")):
            peak = max(r["mean"] for r in rows if r["what"] == what and r["series"] == f"store itself, {phase}")
            one.axhline(
                peak, color=color, linewidth=1, linestyle=(0, (4, 3)), label=f"peak of the store, {phase} (measured)"
            )
    figures.legend_below(figure, axes, columns=3)
    return figure
