"""F26: a shared file against a file per process, with and without the size cache."""

from __future__ import annotations

import figures
import sizecache
from harness import Result, Setting, pick

TITLE = "writes to a shared file in relation to a file per process"
RATIO_MIN = 0.9
ORDERS = ("sequential", "random")
SIZES = {8 << 10: "8.0 KiB", 64 << 10: "64.0 KiB", 1 << 20: "1.0 MiB"}


def measure(setting: Setting) -> Result:
    megabytes, daemons, procs = (8, 2, 2) if setting.quick else (256, 4, 4)
    result = Result("bytes of a write")
    for series, switches in sizecache.variants(setting, result).items():
        samples = setting.bench(
            "io",
            setting.memory,
            daemons,
            "--procs",
            str(procs),
            "--file-size",
            f"{megabytes}MiB",
            "--sizes",
            "8KiB,64KiB,1MiB",
            *switches,
        )
        for order in ORDERS:
            for size, name in SIZES.items():
                shared = sizecache.rates(samples, f"shared file, {order}, {name}")
                own = sizecache.rates(samples, f"file per process, {order}, {name}")
                result.add(f"{order}, rate", f"shared file, {series}", size, "writes/s", shared)
                result.add(f"{order}, rate", f"file per process, {series}", size, "writes/s", own)
                # Samples of one repeat belong together.
                result.add(f"{order}, shared/own", series, size, "ratio", [s / o for s, o in zip(shared, own)])
                tell(result, f"{order}, {figures_name(name)}, {series}", result.rows[-1].summary()["mean"])
        limit = max(s.rate() for s in pick(samples, side="pool", phase="write") if s.case.startswith("shared file"))
        result.findings.append(
            f"{series}: at most {limit / 1000:.0f} k writes/s to the shared file (GekkoFS: 150 k without a cache)"
        )
    result.findings.append(result.widest())
    return result


def figures_name(name: str) -> str:
    return name.replace(".0 ", " ")


def tell(result: Result, what: str, ratio: float) -> None:
    holds = "reaches" if ratio >= RATIO_MIN else "does NOT reach"
    result.findings.append(f"{what}: shared/own = {ratio:.2f}, {holds} {RATIO_MIN:g}")


def draw(report: dict, rows: list[dict]):
    figure, axes = figures.panels(4, columns=2)
    names = {float(size): figures.size_name(size) for size in SIZES}
    for number, order in enumerate(ORDERS):
        figures.bars(axes[number], rows, f"{order}, rate", report["x_label"], names, log_y=True)
        figures.bars(axes[2 + number], rows, f"{order}, shared/own", report["x_label"], names)
        figures.limit(axes[2 + number], RATIO_MIN, "asked for with the cache: 0.9")
    figures.legend_below(figure, axes)
    return figure
