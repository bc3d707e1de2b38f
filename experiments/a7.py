"""A7 (ADA-FS 2019, Table 1; 2020, section 5.2): how long pools take to start and to stop."""

from __future__ import annotations

import json
import math

import figures
from harness import Result, Setting

TITLE = "starting and stopping a pool by the number of nodes"
COUNTS, QUICK_COUNTS = [1, 2, 4, 8, 16, 32, 64], [1, 2, 4]
PLANNED_COUNTS = [8, 16, 32, 64, 128, 256, 512]
START, STOP = "start", "stop"
HERE, LINE, PLAN = "tidepool, daemons on this machine", "the same, straight line", "tidepool, a node each, through ssh"
# Table 1: nodes, seconds to start, to stop. GekkoFS: "512 Nodes under 20 s".
BEEOND = [(8, 10.21, 11.90), (16, 16.75, 12.13), (32, 29.36, 9.40), (64, 56.55, 15.96), (128, 152.19, 36.13), (256, 222.43, 81.06)]
GEKKOFS_NODES, GEKKOFS_SECONDS = 512, 20.0
MODEL = (
    "straight line: that of tidepool bench start, least squares through the medians here, where all daemons share the cores; "
    "a node each: the planner's (tidepool plan): ssh in a tree with fan-out 32, 1 s for each level (assumed), and the daemons of a node"
)


def measure(setting: Setting) -> Result:
    counts = QUICK_COUNTS if setting.quick else COUNTS
    setting.fewer_repeats(2)
    result = Result("daemons (here) or nodes")
    result.model = MODEL
    table = start_table(setting, counts)
    for size in sorted({sample["daemons"] for sample in table["samples"]}):
        chosen = [sample for sample in table["samples"] if sample["daemons"] == size]
        for what in (START, STOP):
            result.add(what, HERE, size, "s", [sample[what] for sample in chosen])
    for row in table["rows"]:
        if row["source"] == "modelled":
            for what in (START, STOP):
                result.add(what, LINE, row["daemons"], "s", [row[what]["median"]], "modelled")
    for nodes in PLANNED_COUNTS:
        result.add(START, PLAN, nodes, "s", [planned(setting, nodes)], "modelled")
    for nodes, start, stop in BEEOND:
        result.add(START, "BeeOND, a node each", nodes, "s", [start], "published")
        result.add(STOP, "BeeOND, a node each", nodes, "s", [stop], "published")
    result.add(START, "GekkoFS, at most", GEKKOFS_NODES, "s", [GEKKOFS_SECONDS], "published")
    conclude(result, counts)
    return result


def start_table(setting: Setting, counts: list[int]) -> dict:
    words = ["bench", "start", "--counts", ",".join(map(str, counts)), "--repeats", str(setting.repeats)]
    command = [str(setting.command), *words, "--store", str(setting.memory.path), "--json"]
    setting.note(command)
    table = json.loads(setting.capture(command))
    setting.commit = table["commit"] or ""
    return table


def planned(setting: Setting, nodes: int) -> float:
    """What the planner expects of that many nodes of which nothing is known."""
    hosts = ",".join(f"n{number}" for number in range(1, nodes + 1))
    setting.note(["tidepool", "plan", "--hosts", f"n1,...,n{nodes}", "--json"])
    nowhere = {"XDG_STATE_HOME": str(setting.work / "no-database")}
    told = setting.capture([str(setting.command), "plan", "--hosts", hosts, "--json"], nowhere)
    return json.loads(told)["costs"]["start"]["seconds"]


def conclude(result: Result, counts: list[int]) -> None:
    here = {n: result.mean(START, HERE, n) for n in counts}
    text = ", ".join(f"{n}: {seconds:.3f} s" for n, seconds in here.items())
    result.findings.append(f"measured: start by daemons on this machine, until each has answered: {text}")
    last = counts[-1]
    result.findings.append(
        f"measured: {counts[0]} to {last} daemons, {last // counts[0]} times as many, take {here[last] / here[counts[0]]:.1f} times as "
        f"long (power {power(here):.2f}); here all daemons share the cores, on a cluster each node starts its own"
    )
    beeond, plan = {n: start for n, start, _ in BEEOND}, {n: result.mean(START, PLAN, n) for n in PLANNED_COUNTS}
    shared = [n for n in plan if n in beeond]
    result.findings.append(
        f"from {shared[0]} to {shared[-1]} nodes: BeeOND (published) takes {beeond[shared[-1]] / beeond[shared[0]]:.1f} times as long "
        f"(power {power(beeond):.2f}), a pool (modelled, 1 s for each level of ssh assumed) {plan[shared[-1]] / plan[shared[0]]:.1f} times (power {power(plan):.2f})"
    )
    result.findings.append(
        f"{GEKKOFS_NODES} nodes: modelled {plan[GEKKOFS_NODES]:.1f} s, and {result.mean(START, LINE, GEKKOFS_NODES):.1f} s if all "
        f"daemons shared the cores of this machine; GekkoFS (published) under {GEKKOFS_SECONDS:.0f} s"
    )
    result.findings.append(result.widest())


def power(seconds: dict[int, float]) -> float:
    """The exponent of a power law through points: 1 is growth in proportion."""
    points = [(math.log(n), math.log(value)) for n, value in seconds.items()]
    middle_x, middle_y = (sum(values) / len(points) for values in zip(*points))
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / spread


def draw(report: dict, rows: list[dict]):
    figure, axes = figures.panels(2, width=5.4)
    for one, what in zip(axes, (START, STOP)):
        figures.lines(one, rows, what, report["x_label"], log_x=True, log_y=True)
    figures.legend_below(figure, axes)
    return figure
