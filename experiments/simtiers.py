"""What the simulated experiments on tiers share: the paper's test bed (sim/ias.toml), changed point by point, through `tidepool sim tiers`.

Nothing here is measured: rows are `modelled`, and those of the paper `published`. What is assumed of the test bed is varied, each assumption by
itself by half and double, and the factors beside tell how much of them it is.
"""

from __future__ import annotations

import copy
import json
import re
import statistics
import sys
import tomllib
from pathlib import Path

import figures
from harness import Failed, Result, Setting

BED = Path(__file__).resolve().parent / "sim" / "ias.toml"
STRATEGIES = ("baseline", "hp", "ia", "fcfs", "set10", "fair", "model")
UNITS = {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
MEAN, SLOWEST = "mean I/O time of a phase", "I/O time of a phase of the slowest application"
ENDED, FLUSHED = "time until all applications have ended", "time until all is on the PFS"
MODEL = "a simulation with the curves of experiments/sim/ias.toml, which are assumed but for their shape"


def size(value: str | int) -> int:
    """Bytes, of what the file has."""
    number, unit = re.fullmatch(r"(\d+)([a-zA-Z]*)", str(value)).groups()
    return int(number) * UNITS[unit]


def bed() -> dict:
    """The test bed, sizes in bytes."""
    table = tomllib.loads(BED.read_text())
    for tier in ("burst", "pfs"):
        for pattern in ("sequential", "random"):
            table[tier][pattern] = [[n, size(rate)] for n, rate in table[tier][pattern]]
        table[tier]["capacity"] = size(table[tier]["capacity"])
    table["network"]["link"] = size(table["network"]["link"])
    table["transfers"]["chunk"] = size(table["transfers"]["chunk"])
    table["application"][0]["bytes"] = size(table["application"][0]["bytes"])
    return table


def at(points: list[list[int]], processes: int) -> float:
    """Bandwidth of a curve, as docs/formats/29-tier-simulation.md says."""
    if processes <= points[0][0]:
        return points[0][1] * processes / points[0][0]
    for (n0, b0), (n1, b1) in zip(points, points[1:]):
        if processes <= n1:
            return b0 + (b1 - b0) * (processes - n0) / (n1 - n0)
    return points[-1][1]


def alone(table: dict) -> float:
    """I/O time of a phase of the first application if only the PFS was there and nobody else, in seconds."""
    app = table["application"][0]
    rate = min(at(table["pfs"]["sequential"], app["processes"]), app["nodes"] * table["network"].get("link", 1e18))
    return app["processes"] * app["bytes"] / rate


def point(table: dict, count: int = 2, nodes: int = 4, ratio: float = 0.5, steps: int = 5) -> dict:
    """The bed with such applications; the ratio is that of one alone on the PFS of this bed."""
    table = copy.deepcopy(table)
    table["application"][0] |= {"copies": count, "nodes": nodes, "steps": steps, "io-ratio": ratio}
    table["application"][0]["alone-seconds"] = round(alone(table), 6)
    return table


def toml(table: dict) -> str:
    """As a file."""
    lines = []
    for section, of in table.items():
        for keys in of if isinstance(of, list) else [of]:
            lines.append(f"[[{section}]]" if isinstance(of, list) else f"[{section}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join(lines) + "\n"


class Simulator:
    """`tidepool sim tiers`; what was asked before is not run again."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.known: dict[tuple[str, str], dict] = {}

    def __call__(self, table: dict, strategies=STRATEGIES) -> dict[str, dict]:
        text = toml(table)
        file = self.setting.work / "bed.toml"
        file.write_text(text)
        wanted = [name for name in strategies if (text, name) not in self.known]
        if wanted:
            command = [str(self.setting.command), "sim", "tiers", str(file), "--json"]
            command += [word for name in wanted for word in ("--strategy", name)]
            self.setting.note(["tidepool", "sim", "tiers", "BED", "--json", *(f"--strategy {name}" for name in strategies)])
            report = json.loads(self.setting.capture(command))
            self.known |= {(text, one["strategy"]): one for one in report["strategies"]}
        return {name: self.known[text, name] for name in strategies}


def sweep(simulator: Simulator, result: Result, points: dict[float, dict], strategies=STRATEGIES) -> dict:
    """Rows of all strategies at all points."""
    found: dict[float, dict[str, dict]] = {}
    for x, table in points.items():
        found[x] = simulator(table, strategies)
        for name, one in found[x].items():
            rows = {
                MEAN: one["io_mean_seconds"],
                SLOWEST: one["io_slowest_seconds"],
                ENDED: one["end_seconds"],
                FLUSHED: one["flushed_seconds"],
            }
            for what, value in rows.items():
                result.add(what, name, x, "s", [value], "modelled")
            for tier in one["tiers"][1:]:
                result.add(f"busy time of {tier['name']}", name, x, "%", [100 * tier["busy"]], "modelled")
            result.add("fairness (Jain)", name, x, "", [one["fairness"]], "modelled")
            result.add("stretch of the worst application", name, x, "", [one["stretch_most"]], "modelled")
        print(f"  {result.x_label} {x:g}: " + ", ".join(f"{n} {o['io_mean_seconds']:.1f} s" for n, o in found[x].items()), file=sys.stderr)
    return found


def factor(found: dict[str, dict], over: str, under: str = "ia") -> float:
    return found[over]["io_mean_seconds"] / found[under]["io_mean_seconds"]


def compare(result: Result, label: str, found: dict, papers: tuple[float, float]) -> None:
    """The paper's factors beside the model's, and which strategies beat `ia`."""
    for name, published in zip(("baseline", "hp"), papers):
        what = f"{name} : ia{label}"
        factors = {x: factor(of, name) for x, of in found.items()}
        for x, value in factors.items():
            result.add(what, "simulated", x, "times", [value], "modelled")
            result.add(what, "the paper", x, "times", [published], "published")
        low, high, mean = min(factors.values()), max(factors.values()), statistics.fmean(factors.values())
        near = 0.9 * published
        verdict = "supports it" if low >= near else "does NOT support it" if high < near else "supports it in part of the sweep"
        text = ", ".join(f"{value:.2f} at {x:g}" for x, value in factors.items())
        result.findings.append(
            f"{name} takes {text} times as long as ia{label}, {mean:.2f} in the mean; the paper: {published:g}. The model {verdict}"
            " (nine tenths count as support)"
        )
    for name in next(iter(found.values())):
        if name in ("baseline", "hp", "ia"):
            continue
        means = [factor(of, "ia", name) for of in found.values()]
        worst = [of["ia"]["io_slowest_seconds"] / of[name]["io_slowest_seconds"] for of in found.values()]
        better = min(means) > 1 and min(worst) >= 1
        result.findings.append(
            f"ia takes {min(means):.2f} to {max(means):.2f} times as long as {name}{label}, its slowest application "
            f"{min(worst):.2f} to {max(worst):.2f}: {name} is {'better everywhere' if better else 'NOT better everywhere'}"
        )


def scaled(table: dict, path: tuple, by: float) -> dict:
    """One number, or all bandwidths of one curve, times something."""
    table = copy.deepcopy(table)
    of = table
    for key in path[:-1]:
        of = of[key]
    value = of[path[-1]]
    if isinstance(value, list):
        of[path[-1]] = [[n, max(1, round(rate * by))] for n, rate in value]
    elif isinstance(value, float):
        of[path[-1]] = value * by
    else:
        of[path[-1]] = max(1, round(value * by))
    return table


def fallen(table: dict, tier: str, by: float) -> dict:
    """The fall of a curve from its peak, times something."""
    table = copy.deepcopy(table)
    points = table[tier]["sequential"]
    peak = max(rate for _, rate in points)
    top = [rate for _, rate in points].index(peak)
    table[tier]["sequential"] = [[n, max(1, round(peak - (peak - rate) * (by if i > top else 1)))] for i, (n, rate) in enumerate(points)]
    return table


def beyond(table: dict, burst: float, pfs: float) -> dict:
    """Bandwidths fall on beyond the last point, by these parts with each doubling."""
    table = copy.deepcopy(table)
    for tier, part in (("burst", burst), ("pfs", pfs)):
        points = table[tier]["sequential"]
        for _ in range(2):
            n, rate = points[-1]
            points.append([2 * n, round(rate * part)])
    return table


def set_to(table: dict, section: str, key: str, value: object) -> dict:
    table = copy.deepcopy(table)
    table.setdefault(section, {})[key] = value
    return table


def without_links(table: dict) -> dict:
    table = copy.deepcopy(table)
    del table["network"]["link"]
    return table


def assumptions(base: dict) -> dict[str, list[dict]]:
    """Each assumption: the bed with half and with double of it, or with the other choice."""
    both = lambda *path: [scaled(base, path, 0.5), scaled(base, path, 2)]  # noqa: E731
    return {
        "burst buffer's bandwidth": both("burst", "sequential"),
        "PFS's bandwidth": both("pfs", "sequential"),
        "burst buffer's fall from its peak": [fallen(base, "burst", 0.5), fallen(base, "burst", 2)],
        "PFS's fall from its peak": [fallen(base, "pfs", 0.5), fallen(base, "pfs", 2)],
        "links": both("network", "link"),
        "no links": [without_links(base)],
        "bandwidths fall on beyond 64 processes": [beyond(base, 0.9, 0.78)],
        "burst buffer's capacity": both("burst", "capacity"),
        "latency": both("network", "latency-seconds"),
        "delay of news": both("schedulers", "news-seconds"),
        "how often it is told": both("schedulers", "tell-seconds"),
        "chunk": both("transfers", "chunk"),
        "chunks in flight": both("transfers", "in-flight"),
        "streams of a flush": both("transfers", "flush-streams"),
        "servers": [set_to(set_to(base, "burst", "servers", n), "pfs", "servers", n) for n in (2, 8)],
        "what is written": both("application", 0, "bytes"),
        "phases' sizes are known": [set_to(base, "schedulers", "hints", True)],
        "links are known": [set_to(base, "schedulers", "links-known", True)],
        "node-local storage of 480 GB, 450 MB/s": [base | {"local": {"capacity": 480 * 10**9, "bandwidth": 450 * 10**6}}],
        "compute times vary by a tenth": [scaled_jitter(base, 0.1)],
    }


def scaled_jitter(table: dict, part: float) -> dict:
    table = copy.deepcopy(table)
    table["application"][0]["jitter"] = part
    return table


def sensitivity(simulator: Simulator, result: Result, base: dict, make, where: str) -> None:
    """How far the two factors go when one assumption changes: rows over its number, and findings."""
    names = ("baseline", "hp", "ia")
    usual = simulator(make(base), names)
    details = {"as assumed": [round(factor(usual, over), 3) for over in ("baseline", "hp")]}
    moved: list[tuple[float, str]] = []
    for number, (name, variants) in enumerate(assumptions(base).items(), 1):
        tables = [simulator(make(variant), names) for variant in variants]
        for over in ("baseline", "hp"):
            values = [factor(found, over) for found in tables]
            result.add(f"{over} : ia by assumption", "other values", number, "times", values, "modelled")
            moved.append((max(abs(value / factor(usual, over) - 1) for value in values), f"{name} ({over} : ia {' and '.join(f'{v:.2f}' for v in values)})"))
        details[name] = [[round(factor(found, over), 3) for over in ("baseline", "hp")] for found in tables]
    result.details["sensitivity"] = {"at": where, "each": "half and double, or the other choice: [baseline : ia, hp : ia]", **details}
    most = [text for change, text in sorted(moved, reverse=True) if change > 0.1]
    rest = [change for change, _ in moved if change <= 0.1]
    result.findings.append(f"sensitivity at {where}, as assumed {details['as assumed']}: more than a tenth is due to " + ("; ".join(most) or "none"))
    result.findings.append(f"sensitivity: the other {len(rest)} changes by half and double move a factor by {100 * max(rest, default=0):.1f} % at most")


def only(wanted: dict, quick: bool, some: tuple) -> dict:
    """A quick run takes some of the points."""
    return {x: of for x, of in wanted.items() if not quick or x in some}


def small(table: dict, quick: bool) -> dict:
    """A quick run has a hundredth of the bytes, in chunks of a hundredth."""
    if not quick:
        return table
    table = scaled(scaled(table, ("application", 0, "bytes"), 0.01), ("transfers", "chunk"), 0.05)
    return scaled(table, ("schedulers", "news-seconds"), 0.01)


def begin(x_label: str, setting: Setting, paper: str) -> tuple[Result, Simulator, dict]:
    if "sim" not in setting.help():
        raise Failed("this build of tidepool has no simulator")
    result = Result(x_label)
    result.model = MODEL
    result.details.update(paper=paper, bed="experiments/sim/ias.toml", simulated=True)
    setting.steps.add("simulated: no storage was touched")
    return result, Simulator(setting), small(bed(), setting.quick)


def draw(report: dict, rows: list[dict]):
    """A panel for each quantity, a group of bars for each point of the sweep; one for the assumptions, by number."""

    def more(one, what: str) -> None:
        if what.endswith("by assumption"):
            one.set_xlabel("assumption, in the order of details.sensitivity; bars from half to double")

    return figures.quantities(report, rows, more)
