"""K12: bandwidth against the number of processes, of shaped tiers and of this machine's disk."""

from __future__ import annotations

import json
import re
import statistics
import sys
import tempfile
import tomllib
from pathlib import Path

import figures
from harness import Result, Setting

TITLE = "bandwidth against processes: tiers shaped as the paper's Figure 2, and a real disk"
SHAPES = Path(__file__).resolve().parent / "shapes"
# The shape's file, and what it stands for.
TIERS = {"ssd": "burst buffer", "hdd": "PFS"}
COUNTS = (2, 4, 8, 16, 32, 64)
# As the paper calls them, and as tidepool does.
PATTERNS = {"contiguous": "sequential", "random": "random"}
DISK = "the disk of this machine"
SHARE_MAX = 10
UNITS = {"": 1, "kb": 10**3, "mb": 10**6}
# Words of the paper: its text has no numbers, so there are no published rows.
PAPER = {
    "what": "Figure 2, II-B: IOR, 2 to 64 processes, contiguous and random, 4 I/O nodes with SSDs, 4 with hard disks",
    "rises": "the bandwidth increased first and then dropped with the increase of the number of processes",
    "falls": "the burst buffer had smaller degree of bandwidth degradation and much higher I/O bandwidth than PFS",
    "numbers": "none in the text; none read off the figure",
}


def rate(value: str | int) -> int:
    """Bytes a second, of what a shape's file has."""
    number, unit = re.fullmatch(r"(\d+)\s*([a-zA-Z]*)", str(value)).groups()
    return int(number) * UNITS[unit.lower()]


def curve(name: str, pattern: str) -> dict[int, int]:
    table = tomllib.loads((SHAPES / f"{name}.toml").read_text())
    return {processes: rate(value) for processes, value in table[pattern]}


def tiers(setting: Setting, where: Path, counts: tuple[int, ...], shape: str | None) -> dict:
    """`tidepool tiers measure`: the curves that it found."""
    command = [str(setting.command), "tiers", "measure", str(where), "--json"]
    command += ["--processes", ",".join(map(str, counts)), "--patterns", ",".join(PATTERNS.values())]
    # Files are longer than what is written in the time.
    command += ["--bytes", "64MiB", "--block", "64KiB", "--repeats", str(setting.repeats)]
    command += ["--seconds", "0.5" if setting.quick else "2"]
    command += ["--shape", str(SHAPES / f"{shape}.toml")] if shape else []
    setting.note(command)
    print(f"  {setting.scrub(command)}", file=sys.stderr)
    return json.loads(setting.capture(command))["curves"]


def add(result: Result, what: str, series: str, points: list[dict]) -> dict[int, float]:
    """Rows of what was measured; medians in MB/s."""
    for point in points:
        result.add(what, series, point["processes"], "MB/s", [value / 1e6 for value in point["repeats"]])
    return {point["processes"]: point["bytes_per_s"] / 1e6 for point in points}


def course(found: dict[int, float]) -> tuple[int, float]:
    """Where the peak is, and by how many percent it falls to the last point."""
    peak = max(found, key=lambda n: found[n])
    return peak, 100 * (1 - found[max(found)] / found[peak])


def measure(setting: Setting) -> Result:
    result = Result("processes")
    setting.fewer_repeats(1)
    counts = (2, 16, 64) if setting.quick else COUNTS
    result.model = "the shapes' curves: experiments/shapes/*.toml, all numbers assumed"
    result.details.update(paper=PAPER, scale="a tenth of the assumed bandwidths")
    falls: dict[tuple[str, str], float] = {}
    with tempfile.TemporaryDirectory(prefix="tidepool-k12-", dir=setting.disk.path) as where:
        for shape, stands_for in TIERS.items():
            found = tiers(setting, Path(where), counts, shape)
            for name, pattern in PATTERNS.items():
                series = f"{stands_for}, {found['storage']}"
                medians = add(result, name, series, found[pattern])
                wanted = {n: value / 1e6 for n, value in curve(shape, pattern).items() if n in counts}
                for n, value in wanted.items():
                    result.add(name, f"{stands_for}, the shape's curve", n, "MB/s", [value], "modelled")
                off = max(100 * abs(medians[n] / wanted[n] - 1) for n in wanted)
                peak, falls[shape, name] = course(medians)
                result.findings.append(
                    f"{series}, {name}: {medians[peak]:.1f} MB/s at most, with {peak} processes; {falls[shape, name]:.0f} % less "
                    f"with {max(medians)}; off the shape's curve by {off:.1f} % at most"
                    + ("" if off <= SHARE_MAX else f": MORE THAN {SHARE_MAX} %")
                )
        real = tiers(setting, Path(where), counts, None)
    for name, pattern in PATTERNS.items():
        verdict = "less" if falls["ssd", name] < falls["hdd", name] else "NOT less"
        result.findings.append(
            f"{name}: the shaped burst buffer falls {verdict} than the shaped PFS "
            f"({falls['ssd', name]:.0f} and {falls['hdd', name]:.0f} %), as the paper's text says of the real ones"
        )
        medians = add(result, DISK, f"{name}, {real['storage']}", real[pattern])
        peak, fall = course(medians)
        result.findings.append(
            f"{DISK}, {name}, {real['storage']}: {medians[min(medians)]:.0f} MB/s with {min(medians)} processes, "
            f"{medians[peak]:.0f} with {peak}, {fall:.0f} % less with {max(medians)}; nothing is expected of it"
        )
    result.details["disk"] = {"direct": real["direct"], "spread_percent": spread(result)}
    result.findings.append(result.widest())
    return result


def spread(result: Result) -> float:
    """How far the repeats on the real disk are apart, at the median point."""
    rows = [row for row in result.rows if row.what == DISK]
    return statistics.median(100 * (max(row.values) / min(row.values) - 1) for row in rows)


def draw(report: dict, rows: list[dict]):
    panels = [*PATTERNS, DISK]
    figure, axes = figures.panels(len(panels))
    for one, what in zip(axes, panels):
        figures.lines(one, rows, what, report["x_label"], log_x=True)
    figures.legend_below(figure, axes)
    return figure
