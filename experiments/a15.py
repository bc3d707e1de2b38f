"""A15: are the chunk size and the stripe that are chosen by themselves right?"""

from __future__ import annotations

import json
import statistics
from itertools import product

import figures
from harness import Result, Setting, pick

TITLE = "the automatic chunk size and stripe beside a sweep"
DAEMONS = 4
KIB = 1 << 10
SMALL, LARGE = 8 * KIB, 1 << 20
# Own or shared files; order; bytes of a transfer.
PATTERNS = {
    "own files, sequential, 8 KiB": ("files", "sequential", SMALL),
    "own files, sequential, 1 MiB": ("files", "sequential", LARGE),
    "own files, random, 8 KiB": ("files", "random", SMALL),
    "shared file, sequential, 8 KiB": ("shared", "sequential", SMALL),
    "shared file, sequential, 1 MiB": ("shared", "sequential", LARGE),
    "shared file, random, 8 KiB": ("shared", "random", SMALL),
}
CHUNKS = [64 * KIB, 256 * KIB, 512 * KIB, 1024 * KIB, 4096 * KIB]
# Daemons that a file's chunks go to; 0 for all.
STRIPES = [0, 1, 2]
LOCAL = ("--placement", "local")
PHASES = ("write", "read")
AUTO, AGAIN = "automatic", "automatic, again"
# The bar: what is chosen is within this share of the best.
BAR = 0.9
WORDS = {"files": "own", "shared": "shared"}


def wide(chunk: int, stripe: int) -> tuple[str, ...]:
    return ("--placement", "wide", "--chunk-size", str(chunk), "--stripe", str(stripe))


def chosen(setting: Setting, layout: str, order: str, size: int) -> tuple[str, ...]:
    """What the planner takes for this pattern, as flags."""
    pattern = f"{WORDS[layout]},{order},{size}"
    command = [str(setting.command), "plan", "--local", "--nodes", str(DAEMONS), "--pattern", pattern, "--json"]
    setting.note(command)
    plan = json.loads(setting.capture(command))
    if plan["placement"]["value"] == "local":
        return LOCAL
    return wide(plan["chunk_size"]["value"], plan["stripe"]["value"])


def candidates(auto: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """What is tried, by name. The choice is there twice: how much the two differ is what a difference means here."""
    tried = {f"{size // KIB} KiB, {n or 'all'}": wide(size, n) for size, n in product(CHUNKS, STRIPES)} | {"local": LOCAL}
    return {AUTO: auto, AGAIN: auto} | {name: flags for name, flags in tried.items() if flags != auto}


def measure(setting: Setting) -> Result:
    result = Result("what was tried")
    megabytes, procs = (8, 2) if setting.quick else (64, 2)
    patterns = dict(list(PATTERNS.items())[:2]) if setting.quick else PATTERNS
    result.details.update(processes=procs, megabytes_per_process=megabytes, daemons=DAEMONS)
    for name, (layout, order, size) in patterns.items():
        tried = candidates(chosen(setting, layout, order, size))
        rates: dict[tuple[str, str], list[float]] = {}
        cpu: dict[tuple[str, str], list[float]] = {}
        for turn in range(setting.repeats):
            # In turn, and each time from another one on, so that what else happens on the machine meets all alike.
            order_now = list(tried)[turn % len(tried) :] + list(tried)[: turn % len(tried)]
            for label in order_now:
                work = ("--layouts", layout, "--orders", order, "--sizes", f"{size}", "--procs", str(procs))
                samples = setting.bench(
                    "io", setting.memory, DAEMONS, *tried[label], *work, "--file-size", f"{megabytes}MiB", repeats=1
                )
                for phase in PHASES:
                    for sample in pick(samples, side="pool", phase=phase):
                        rates.setdefault((phase, label), []).append(sample.bandwidth())
                        spent = (sample.client_cpu + sample.daemon_cpu) / sample.bytes * (1 << 20) * 1e6
                        cpu.setdefault((phase, label), []).append(spent)
        for at, (label, phase) in enumerate(product(tried, PHASES)):
            result.add(f"{name}, {phase}", label, at // len(PHASES), "MiB/s", rates[phase, label])
            result.add(f"{name}, {phase}, processor", label, at // len(PHASES), "us/MiB", cpu[phase, label])
        for phase in PHASES:
            result.findings.append(finding(name, phase, tried, rates, cpu))
    return result


def finding(name: str, phase: str, tried, rates, cpu) -> str:
    """The choice beside the best, by medians: of the bandwidth, and, which scatters less, of the processor time."""
    middle = {label: statistics.median(rates[phase, label]) for label in tried}
    spent = {label: statistics.median(cpu[phase, label]) for label in tried}
    own = max(middle[AUTO], middle[AGAIN])
    fastest = max(tried, key=lambda label: middle[label])
    cheapest = min(tried, key=lambda label: spent[label])
    cost = min(spent[AUTO], spent[AGAIN])
    share, cost_share = own / middle[fastest], spent[cheapest] / cost
    scatter = abs(middle[AUTO] - middle[AGAIN]) / max(middle[AUTO], middle[AGAIN])
    verdict = "within 10 %" if share >= BAR else "NOT within 10 %"
    return (
        f"{name}, {phase}: automatic {share:.2f} of the best ({fastest}): {verdict}; "
        f"by processor time {cost_share:.2f} of the best ({cheapest}); the same twice differs by {100 * scatter:.0f} %"
    )


def draw(report: dict, rows: list[dict]):
    names = sorted({row["what"] for row in rows if "processor" not in row["what"]})
    figure, axes = figures.panels(len(names), columns=2, width=5.6, height=3.4)
    for one, what in zip(axes, names):
        chosen_rows = sorted((row for row in rows if row["what"] == what), key=lambda row: row["x"])
        for place, row in enumerate(chosen_rows):
            spread = [[row["mean"] - row["min"]], [row["max"] - row["mean"]]]
            color = figures.COLORS[1] if row["series"].startswith(AUTO) else figures.COLORS[0]
            one.bar(place, row["mean"], 0.7, yerr=spread, capsize=3, color=color)
        one.set_xticks(range(len(chosen_rows)), [row["series"] for row in chosen_rows], rotation=45, ha="right", fontsize=7)
        one.set_title(what, fontsize=9)
        one.set_ylabel("MiB/s (measured)")
    return figure
