"""What F24 and F25 share: a file per process, by transfer size, beside the store below."""

from __future__ import annotations

import statistics
from itertools import product

import figures
from harness import Result, Sample, Setting, Store, pick

PHASES = ("write", "read")
SIZES = {8 << 10: "8.0 KiB", 64 << 10: "64.0 KiB", 1 << 20: "1.0 MiB", 64 << 20: "64.0 MiB"}
CHUNK = 512 << 10


def bench(setting: Setting, store: Store, orders: str) -> list[Sample]:
    # A transfer of 64 MiB is made in any case. Full: what a pool and its page cache can have in memory here.
    procs, megabytes, daemons = (2, 16, 2) if setting.quick else (4, 1024, 4)
    setting.fewer_repeats(3)
    setting.need_space(store, procs * max(megabytes, 64) << 20)
    return setting.bench(
        "io",
        store,
        daemons,
        "--procs",
        str(procs),
        "--file-size",
        f"{megabytes}MiB",
        "--sizes",
        "8KiB,64KiB,1MiB,64MiB",
        "--layouts",
        "files",
        "--orders",
        orders,
    )


def case(order: str, size: int) -> str:
    return f"file per process, {order}, {SIZES[size]}"


def panel(phase: str, store_type: str) -> str:
    return f"{phase}, store on {store_type}"


def add(result: Result, samples: list[Sample], store: Store, order: str) -> None:
    """Bandwidths of the pool, and the most that the store gave to plain sequential access (the paper's white bars)."""
    for phase in PHASES:
        native = {
            size: [s.bandwidth() for s in pick(samples, case=case("sequential", size), side="native", phase=phase)]
            for size in SIZES
        }
        peak = max(native.values(), key=statistics.fmean)
        for size in SIZES:
            pool = [s.bandwidth() for s in pick(samples, case=case(order, size), side="pool", phase=phase)]
            what = panel(phase, store.type)
            result.add(what, f"pool, {order}", size, "MiB/s", pool)
            result.add(what, "raw peak of the store", size, "MiB/s", peak)
            share = 100 * statistics.fmean(pool) / statistics.fmean(peak)
            result.add(f"{what}, share of raw", f"pool, {order}", size, "%", [share])
        largest = result.mean(f"{panel(phase, store.type)}, share of raw", f"pool, {order}", max(SIZES))
        result.findings.append(
            f"{order} {phase} of 64 MiB on {store.type}: {largest:.0f} % of the store's own peak of {statistics.fmean(peak):.0f} MiB/s"
            + (f"; 80 % is {'reached' if largest >= 80 else 'NOT reached'}" if phase == "write" else "")
        )


def draw(report: dict, rows: list[dict], order: str, more: int = 0):
    """Bars in front of the white bars of the raw peak; `more` panels are left to the caller."""
    types = list(report["stores"].values())
    count = len(PHASES) * len(types)
    figure, axes = figures.panels(count + more, columns=2, width=5.4, height=3.8)
    for one, (store_type, phase) in zip(axes, product(types, PHASES)):
        what = panel(phase, store_type)
        chosen = [row for row in rows if row["what"] == what]
        xs = sorted({row["x"] for row in chosen})
        for row in chosen:
            place = xs.index(row["x"])
            if row["series"].startswith("raw"):
                text = figures.label(row["series"], row["kind"])
                one.bar(
                    place,
                    row["mean"],
                    0.7,
                    color="white",
                    edgecolor="#555555",
                    label=text if place == 0 else None,
                    zorder=1,
                )
        for row in chosen:
            place = xs.index(row["x"])
            if not row["series"].startswith("raw"):
                spread = [[row["mean"] - row["min"]], [row["max"] - row["mean"]]]
                text = figures.label(row["series"], row["kind"])
                one.bar(
                    place,
                    row["mean"],
                    0.5,
                    yerr=spread,
                    capsize=3,
                    color=figures.COLORS[0],
                    label=text if place == 0 else None,
                    zorder=2,
                )
                share = next(
                    r
                    for r in rows
                    if r["what"] == f"{what}, share of raw" and r["series"] == row["series"] and r["x"] == row["x"]
                )
                one.annotate(
                    f"{share['mean']:.0f} %",
                    (place, row["max"]),
                    ha="center",
                    va="bottom",
                    fontsize=8,
                    zorder=3,
                    xytext=(0, 2),
                    textcoords="offset points",
                )
        figures.finish(
            one, chosen, what + (", until fsync has returned" if phase == "write" else ""), report["x_label"], False
        )
        one.set_xticks(range(len(xs)), [figures.size_name(x) for x in xs])
    return figure, axes
