"""C6 (S0, Section 4.1): how waits and the time for which nodes are known ahead change with priorities, partitions, reservations and maintenance."""

from __future__ import annotations

import gzip
import json
import random
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import figures
from harness import Failed, Result, Setting

TITLE = "priorities, partitions, reservations and maintenance on logs of jobs"
HOUR, DAY, WEEK = 3600, 86_400, 7 * 86_400
# A job is short that asks for no more.
SHORT_SECONDS = HOUR
# Who wants more of the nodes is wide; who wants more than all may have is not kept off any.
WIDE, TOO_WIDE = 0.1, 0.75
FAVOURED = 0.25
# Numbers of queues in the logs that are simulated (field 15), and of partitions (field 16).
SHORT, LONG, LONG_AND_TOO_WIDE = 1, 2, 3
PLAIN, CHOSEN, WIDE_JOB, WIDE_AND_CHOSEN = 1, 2, 3, 4
INSTANT, KNOWN, WAIT, SLOWDOWN = "started at once", "nodes known for more than 10 minutes", "mean wait", "mean bounded slowdown"
# Where no log is given, in a quick run.
MADE_JOBS, MADE_NODES = 300, 32


@dataclass
class Change:
    """What is done to a machine; `text` gives its file from the number of nodes and the second at which things begin."""

    name: str
    text: Callable[[int, float], str]
    # It begins at a time that a seed chooses, or its jobs are drawn.
    drawn: bool = False


def first(nodes: int, share: float) -> int:
    return max(1, round(nodes * share))


def queues(name: str, numbers: list[int], more: str) -> str:
    return f'[[partition]]\nname = "{name}"\n{more}\nqueues = {numbers}\n'


def favoured(*numbers: int) -> str:
    return f'[[partition]]\nname = "favoured"\npartitions = {list(numbers)}\npriority = 10\n'


def apart(nodes: int, share: float) -> str:
    """The first nodes take short jobs only, which may run anywhere."""
    return queues("long", [LONG], f'nodes = "{first(nodes, share)}-{nodes - 1}"')


def block(begin: float, seconds: int, every: int, nodes: int = 0, announced: int | None = 2 * WEEK) -> str:
    text = f'[[block]]\nname = "away"\nfrom-seconds = {int(begin * every)}\nseconds = {seconds}\nevery-seconds = {every}\n'
    text += f'nodes = "0-{nodes - 1}"\n' if nodes else ""
    return text if announced is None else text + f"announced-seconds = {announced}\n"


# In the order of the figure, from above. Of each: nodes of the machine, and a share of the period at which the first block begins.
CHANGES = (
    Change("nothing", lambda nodes, begin: ""),
    Change("priority for short jobs", lambda nodes, begin: queues("short", [SHORT], "priority = 10")),
    Change("priority for wide jobs", lambda nodes, begin: favoured(WIDE_JOB, WIDE_AND_CHOSEN)),
    Change("priority for a quarter of the jobs", lambda nodes, begin: favoured(CHOSEN, WIDE_AND_CHOSEN), drawn=True),
    Change("10 % of the nodes for short jobs only", lambda nodes, begin: apart(nodes, 0.1)),
    Change("25 % of the nodes for short jobs only", lambda nodes, begin: apart(nodes, 0.25)),
    Change("maintenance, 8 h in 4 weeks", lambda nodes, begin: block(begin, 8 * HOUR, 4 * WEEK), drawn=True),
    Change("maintenance, 24 h in 4 weeks", lambda nodes, begin: block(begin, DAY, 4 * WEEK), drawn=True),
    Change("maintenance, 24 h in 4 weeks, not announced", lambda nodes, begin: block(begin, DAY, 4 * WEEK, announced=0), drawn=True),
    Change("maintenance, 8 h each week", lambda nodes, begin: block(begin, 8 * HOUR, WEEK), drawn=True),
    Change("25 % reserved, a day each week", lambda nodes, begin: block(begin, DAY, WEEK, first(nodes, 0.25)), drawn=True),
    Change("50 % reserved, a week in 4", lambda nodes, begin: block(begin, WEEK, 4 * WEEK, first(nodes, 0.5)), drawn=True),
)


@dataclass
class Log:
    name: str
    header: list[str]
    jobs: list[list[str]]
    nodes: int
    per_node: int

    @staticmethod
    def read(path: Path) -> Log:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8", "replace")
        header = [line for line in text.splitlines() if line.startswith(";")]
        jobs = [line.split() for line in text.splitlines() if line.strip() and not line.startswith(";")]
        if not jobs or any(len(job) != 18 for job in jobs):
            raise Failed(f"{path.name} is no log in the Standard Workload Format: a line has not 18 numbers")
        found = {name: re.search(rf"^; *{name}: *(\d+)", "\n".join(header), re.MULTILINE) for name in ("MaxNodes", "MaxProcs")}
        if not all(found.values()):
            raise Failed(f"{path.name} does not say MaxNodes and MaxProcs")
        nodes, processors = (int(match[1]) for match in found.values())
        name = re.split(r"[.]|-\d", path.name)[0]
        return Log(name, header, jobs, nodes, max(1, processors // nodes))

    def write(self, path: Path, seed: int) -> None:
        """With the queue and the partition that the changes go by in place of the log's own."""
        drawn = random.Random(seed)
        lines = list(self.header)
        for job in self.jobs:
            request = float(job[8]) if float(job[8]) > 0 else float(job[3])
            processors = int(job[7]) if int(job[7]) > 0 else int(job[4])
            share = -(-processors // self.per_node) / self.nodes
            queue = SHORT if request <= SHORT_SECONDS else LONG_AND_TOO_WIDE if share > TOO_WIDE else LONG
            group = {(False, False): PLAIN, (False, True): CHOSEN, (True, False): WIDE_JOB, (True, True): WIDE_AND_CHOSEN}[
                (share > WIDE, drawn.random() < FAVOURED)
            ]
            lines.append(" ".join([*job[:14], str(queue), str(group), *job[16:]]))
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def made(path: Path) -> Path:
    """A log for a quick run: too small for conclusions."""
    drawn = random.Random(6)
    lines = [f"; MaxNodes: {MADE_NODES}", f"; MaxProcs: {MADE_NODES}"]
    submit = 0
    for number in range(1, MADE_JOBS + 1):
        submit += drawn.randrange(2 * HOUR)
        request = drawn.choice((900, HOUR, 4 * HOUR, DAY))
        wide = drawn.choice((1, 2, 4, 16, MADE_NODES))
        lines.append(f"{number} {submit} -1 {drawn.randrange(1, request)} {wide} -1 -1 {wide} {request} -1 1 {number % 7} -1 -1 -1 -1 -1 -1")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def measure(setting: Setting) -> Result:
    paths = setting.args.log or []
    if not paths and not setting.quick:
        raise Failed("say with --log which logs to simulate, in the Standard Workload Format (https://www.cs.huji.ac.il/labs/parallel/workload)")
    setting.fewer_repeats(2)
    result = Result("change")
    result.model = (
        "simulated: conservative backfilling by requests on nodes that are told from each other, all plans made anew in the order of the queue "
        "when a job ends early, as with Slurm ('tidepool jobs simulate --allocation any --early anew'). A change that is "
        f"drawn (who has priority; when blocks begin) has a run for each of the seeds 1 to {setting.repeats}; short: requests up to {SHORT_SECONDS} s; "
        f"wide: more than {WIDE:.0%} of the nodes; who wants more than {TOO_WIDE:.0%} is not kept off any"
    )
    result.details["changes"] = [change.name for change in CHANGES]
    for path in paths or [made(setting.work / "made.swf")]:
        log = Log.read(path)
        for place, change in enumerate(CHANGES):
            runs = [run(setting, log, change, seed) for seed in range(1, (setting.repeats if change.drawn else 1) + 1)]
            for what, unit, value in READINGS:
                result.add(what, log.name, place, unit, [value(one) for one in runs], "modelled")
        conclude(result, log)
    return result


READINGS = (
    (INSTANT, "% of the jobs", lambda one: 100 * one["known_ahead"]["shares"][0]),
    (KNOWN, "% of the jobs", lambda one: 100 * one["known_ahead"]["shares"][3]),
    (WAIT, "h", lambda one: one["mean_wait_seconds"] / HOUR),
    (SLOWDOWN, "times", lambda one: one["mean_bounded_slowdown"]),
)


def run(setting: Setting, log: Log, change: Change, seed: int) -> dict:
    jobs, machine = setting.work / f"{log.name}.swf", setting.work / "machine.toml"
    log.write(jobs, seed)
    begin = random.Random(seed).random()
    text = f"nodes = {log.nodes}\nprocessors-per-node = {log.per_node}\n{change.text(log.nodes, begin)}"
    machine.write_text(text, encoding="utf-8")
    command = [str(setting.command), "jobs", "simulate", str(jobs), "--machine", str(machine), "--allocation", "any", "--early", "anew", "--json"]
    setting.note([*command, f"# {change.name}, seed {seed}: {text!r}"])
    print(f"  {log.name}: {change.name}, seed {seed}", file=sys.stderr)
    return json.loads(setting.capture(command))["result"]


def conclude(result: Result, log: Log) -> None:
    def told(what: str, place: int, digits: int) -> str:
        return f"{result.mean(what, log.name, place):.{digits}f}"

    for place, change in enumerate(CHANGES):
        result.findings.append(
            f"{log.name}, {change.name}: {told(INSTANT, place, 1)} % started at once, {told(KNOWN, place, 1)} % with nodes known for more than "
            f"10 minutes, mean wait {told(WAIT, place, 2)} h, slowdown {told(SLOWDOWN, place, 1)}"
        )


def draw(report: dict, rows: list[dict]):
    names = report["details"]["changes"]
    figure, axes = figures.panels(len(READINGS), columns=2, width=5.6, height=3.9)
    logs = list(dict.fromkeys(row["series"] for row in rows))
    high = 0.8 / len(logs)
    for one, (what, unit, _) in zip(axes, READINGS):
        for number, log in enumerate(logs):
            points = sorted((row for row in rows if (row["what"], row["series"]) == (what, log)), key=lambda row: row["x"])
            at = [row["x"] + (number - (len(logs) - 1) / 2) * high for row in points]
            means = [row["mean"] for row in points]
            spread = [[row["mean"] - row["min"] for row in points], [row["max"] - row["mean"] for row in points]]
            color = figures.COLORS[number % len(figures.COLORS)]
            one.barh(at, means, high * 0.9, xerr=spread, capsize=2, label=f"{log} (simulated)", color=color)
            # As it is without any change.
            one.axvline(means[0], color=color, linewidth=0.8, linestyle=":")
        one.set_title(what, fontsize=10)
        one.set_xlabel(unit)
        one.set_yticks(range(len(names)), names, fontsize=7)
        one.invert_yaxis()
        one.grid(True, axis="x", alpha=0.3)
        one.set_axisbelow(True)
    figures.legend_below(figure, axes)
    return figure
