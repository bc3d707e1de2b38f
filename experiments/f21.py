"""F21: small writes to one shared file, with and without the client's cache of file sizes; is the size right at once?"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import figures
import sizecache
from harness import Pool, Result, Setting

TITLE = "small writes to a shared file, with and without the size cache"
GAIN_MIN = 5.0
ORDERS = ("sequential", "random")
TRANSFER = "8KiB"
SCRIPT = Path(__file__).resolve().parent / "size_check.py"


def measure(setting: Setting) -> Result:
    procs, megabytes = ([2], 8) if setting.quick else ([1, 2, 4, 8], 128)
    result = Result("processes")
    daemons = 2 if setting.quick else 4
    variants = sizecache.variants(setting, result)
    for count in procs:
        for series, switches in variants.items():
            samples = setting.bench(
                "io",
                setting.memory,
                daemons,
                "--procs",
                str(count),
                "--file-size",
                f"{megabytes}MiB",
                "--sizes",
                TRANSFER,
                "--layouts",
                "shared",
                *switches,
            )
            for order in ORDERS:
                found = sizecache.rates(samples, f"shared file, {order}, 8.0 KiB")
                result.add(f"{order} writes of 8 KiB", series, count, "writes/s", found)
    gains(result, variants, procs)
    for series, switches in variants.items():
        check_size(setting, result, series, switches, daemons)
    result.findings.append(result.widest())
    return result


def gains(result: Result, variants: dict, procs: list[int]) -> None:
    if sizecache.WITH not in variants:
        return
    for order in ORDERS:
        what = f"{order} writes of 8 KiB"
        ratios = {n: result.mean(what, sizecache.WITH, n) / result.mean(what, sizecache.WITHOUT, n) for n in procs}
        holds = "reached" if max(ratios.values()) >= GAIN_MIN else "NOT reached"
        told = ", ".join(f"{ratio:.2f} with {n} process(es)" for n, ratio in ratios.items())
        result.findings.append(
            f"{what}: the cache makes them so many times as fast: {told}; {GAIN_MIN:g} times is {holds}"
        )


def check_size(setting: Setting, result: Result, series: str, switches: list[str], daemons: int) -> None:
    """Two processes write by turns; after each close and each fsync a third must see the size."""
    writes = 2_000
    with Pool(setting, setting.memory, daemons, *switches) as pool:
        before = sum(daemon["counters"]["requests"] for daemon in pool.status())
        told = json.loads(pool.exec(sys.executable, str(SCRIPT), str(writes)))
        requests = sum(daemon["counters"]["requests"] for daemon in pool.status()) - before
    result.details[f"size check {series}"] = told | {"requests_of_daemons": requests}
    right = "right" if not told["wrong"] else f"WRONG {len(told['wrong'])} times: {told['wrong'][0]}"
    result.findings.append(
        f"{series}: size seen by another process after fsync and after close: {right} in {told['looks']} looks; "
        f"{requests / told['writes']:.2f} requests to daemons per write"
    )


def draw(report: dict, rows: list[dict]):
    figure, axes = figures.panels(len(ORDERS))
    for one, order in zip(axes, ORDERS):
        figures.bars(one, rows, f"{order} writes of 8 KiB", report["x_label"])
    figures.legend_below(figure, axes)
    return figure
