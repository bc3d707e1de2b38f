"""Draws the CSV of an experiment. Never runs anything."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#0b5fa5", "#e07b00", "#2a8c4a", "#b03060", "#6a4fa3", "#7a5c3a", "#2f9fb5", "#888888")
MARKERS = "os^Dv<>P"
# Height of a line of small text.
LINE_INCHES = 0.2
# What was not measured stands out.
COLOR_OF_KIND = {"modelled": "#222222", "published": "#cc0000"}
STYLE = {"measured": "-", "modelled": "--", "published": ":"}


def write(path: Path, experiment: ModuleType, report: dict, rows: list[dict]) -> None:
    figure = experiment.draw(report, rows)
    machine = report["machine"]
    how = "quick run, too small for conclusions; " if report["quick"] else ""
    figure.suptitle(f"{report['experiment'].upper()}: {report['title']}", fontsize=12)
    commit = (report["commit"] or "unknown")[:12]
    figure.text(
        0.5,
        0.05 / figure.get_figheight(),
        f"{how}{machine['processor']}, {machine['cores']} cores, commit {commit}, "
        f"door {report['client']}, caches {report['caches']}",
        ha="center",
        fontsize=7,
        color="#555555",
    )
    figure.savefig(path, dpi=110)


def panels(count: int, width: float = 4.6, height: float = 4.4, columns: int | None = None) -> tuple:
    columns = columns or count
    lines = -(-count // columns)
    size = (max(width * columns, 6.5), height * lines + 0.6)
    # Not before there is something to draw: measuring needs the standard library only.
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False)
    keep_below(figure, 0)
    return figure, list(axes.flat)


def keep_below(figure: Figure, inches: float) -> None:
    """Leaves room below the panels, for a legend and the line about the machine."""
    share = (inches + LINE_INCHES) / figure.get_figheight()
    figure.get_layout_engine().set(rect=(0, share, 1, 1 - share))


def label(series: str, kind: str) -> str:
    return f"{series} ({kind})"


def series_of(rows: list[dict]) -> list[tuple[str, str]]:
    """Series and kind, in the order of the file."""
    return list(dict.fromkeys((row["series"], row["kind"]) for row in rows))


def lines(axes: Axes, rows: list[dict], what: str, x_label: str, log_x: bool = False, log_y: bool = False) -> None:
    """One line per series, with a bar from the smallest to the largest sample."""
    chosen = [row for row in rows if row["what"] == what]
    # All panels of a figure give a series the same colour.
    known = series_of(rows)
    for name, kind in series_of(chosen):
        place = known.index((name, kind))
        points = sorted((r for r in chosen if (r["series"], r["kind"]) == (name, kind)), key=lambda r: r["x"])
        x, y = [r["x"] for r in points], [r["mean"] for r in points]
        spread = [[r["mean"] - r["min"] for r in points], [r["max"] - r["mean"] for r in points]]
        axes.errorbar(
            x,
            y,
            yerr=spread,
            label=label(name, kind),
            linestyle=STYLE[kind],
            capsize=3,
            markersize=5,
            color=COLOR_OF_KIND.get(kind, COLORS[place % len(COLORS)]),
            marker=MARKERS[place % len(MARKERS)],
            markerfacecolor=None if kind == "measured" else "white",
        )
    finish(axes, chosen, what, x_label, log_y)
    if log_x:
        axes.set_xscale("log", base=2)
    ticks = sorted({r["x"] for r in chosen})
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off() if log_x else None


def bars(
    axes: Axes, rows: list[dict], what: str, x_label: str, names: dict[float, str] | None = None, log_y: bool = False
) -> None:
    """Groups of bars, one group per x, one bar per series."""
    chosen = [row for row in rows if row["what"] == what]
    all_x = sorted({r["x"] for r in chosen})
    known = series_of(rows)
    present = series_of(chosen)
    width = 0.8 / len(present)
    for number, (name, kind) in enumerate(present):
        points = [r for r in chosen if (r["series"], r["kind"]) == (name, kind)]
        at = [all_x.index(r["x"]) + (number - (len(present) - 1) / 2) * width for r in points]
        spread = [[r["mean"] - r["min"] for r in points], [r["max"] - r["mean"] for r in points]]
        axes.bar(
            at,
            [r["mean"] for r in points],
            width * 0.92,
            yerr=spread,
            capsize=2,
            label=label(name, kind),
            color=COLORS[known.index((name, kind)) % len(COLORS)],
            hatch=None if kind == "measured" else "//",
        )
    finish(axes, chosen, what, x_label, log_y)
    axes.set_xticks(range(len(all_x)), [(names or {}).get(x, f"{x:g}") for x in all_x])


def finish(axes: Axes, chosen: list[dict], what: str, x_label: str, log_y: bool) -> None:
    axes.set_title(what, fontsize=10)
    axes.set_xlabel(x_label)
    axes.set_ylabel(chosen[0]["unit"])
    axes.grid(True, axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    if log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.12 * max(row["max"] for row in chosen) or 1)


def limit(axes: Axes, value: float, text: str) -> None:
    """A line that a requirement draws."""
    axes.axhline(value, color="#aa0000", linewidth=1, linestyle=(0, (4, 3)), label=text)
    axes.set_ylim(top=max(axes.get_ylim()[1], 1.15 * value))


def legend_below(figure: Figure, axes: list[Axes], columns: int = 2) -> None:
    """One legend for all panels."""
    found: dict[str, object] = {}
    for one in axes:
        for handle, text in zip(*one.get_legend_handles_labels()):
            found.setdefault(text, handle)
    room = LINE_INCHES * -(-len(found) // columns)
    figure.set_figheight(figure.get_figheight() + room)
    keep_below(figure, room)
    anchor = (0.5, 0.9 * LINE_INCHES / figure.get_figheight())
    figure.legend(
        found.values(),
        found.keys(),
        loc="lower center",
        bbox_to_anchor=anchor,
        ncols=columns,
        fontsize=8,
        frameon=False,
    )


def size_name(byte_count: float) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if byte_count >= factor:
            return f"{byte_count / factor:g} {unit}"
    return f"{byte_count:g} B"


def quantities(report: dict, rows: list[dict], more=lambda one, what: None):
    """A panel for each quantity, a group of bars for each x; `more` adds to a panel what belongs to its quantity."""
    names = list(dict.fromkeys(row["what"] for row in rows))
    figure, axes = panels(len(names), columns=2, width=5.6, height=3.6)
    for one, what in zip(axes, names):
        bars(one, rows, what, report["x_label"])
        more(one, what)
    legend_below(figure, axes)
    return figure
