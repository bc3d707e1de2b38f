"""What b4 to b6 share: run times of a log's jobs predicted by AutoML and others, judged by `python -m tidepool.jobs.evaluate`.

Each log is judged twice: in the order of time, and with half of its jobs, taken at random, teaching, as the papers'
author did. The second leaks the future, and everything here that comes from it says so.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import figures
from harness import Failed, Result, Setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TEMPORAL, RANDOM = "temporal split", "random split: leaks the future"
SPLITS = {TEMPORAL: "temporal", RANDOM: "random"}
AUTOML, LINEAR, REQUEST = "automl-history", "linear-batch", "request"
SEED = 1
# Models that AutoML tries for each user, and when batch learners learn anew in the order of time.
ITERATIONS, QUICK_ITERATIONS = 20, 2
TRAININGS, QUICK_TRAININGS = 5, 1
QUICK_JOBS = 300
MADE_UP = "made up"
# Marks on lines.
IN_FRONT = 5


@dataclass
class Judged:
    """One log under one split."""

    log: str
    split: str
    predictors: dict[str, dict]
    """As in evaluation.json."""

    @property
    def what(self) -> str:
        return f"{self.log}, {self.split}"

    def errors_s(self, predictor: str) -> list[float]:
        """Median absolute errors of users, ascending."""
        return self.predictors[predictor]["medae_of_users_seconds"]

    def at_s(self, predictor: str, percent: int) -> float:
        """The error of the user at this share of the users."""
        return self.predictors[predictor][f"medae_p{percent}_user_seconds"]


def judged(setting: Setting, predictors: tuple[str, ...]) -> list[Judged]:
    """Each log under both splits; those that learn job by job only in the order of time."""
    logs = setting.args.log or []
    if not logs and not setting.quick:
        raise Failed("no logs: give files by --log FILE..., such as the Parallel Workloads Archive has, or what sacct writes")
    logs = logs or [made_up(setting.work / f"{MADE_UP}.swf")]
    found = []
    for log in logs:
        for label, split in SPLITS.items():
            names = [name for name in predictors if name != "default" or split == "temporal"]
            one = evaluate(setting, log, split, names)
            found.append(Judged(log.name.removesuffix(".gz").removesuffix(".swf"), label, {row["predictor"]: row for row in one["predictors"]}))
            if not found[-1].errors_s(names[0]):
                raise Failed(f"{log.name}: no user has enough jobs to be judged")
    setting.steps.add("logs of other machines are read: nothing here depends on this one but the times that learning took")
    return found


def evaluate(setting: Setting, log: Path, split: str, predictors: list[str]) -> dict:
    quick = setting.quick
    command = [setting.args.python or sys.executable, "-m", "tidepool.jobs.evaluate", str(log), "--json", "--split", split]
    for name in predictors:
        command += ["--predictor", name]
    command += ["--seed", str(SEED), "--trainings", str(QUICK_TRAININGS if quick else TRAININGS)]
    command += ["--automl-iterations", str(QUICK_ITERATIONS if quick else ITERATIONS)]
    command += ["--workers", "1"] if quick else []
    # Neither the interpreter's place nor the log's is told.
    told = [*command]
    told[0], told[3] = "python", log.name
    setting.note(told)
    print(f"  {' '.join(told)}", file=sys.stderr)
    return json.loads(setting.capture([str(word) for word in command]))["logs"][0]


def made_up(path: Path) -> Path:
    """Users with two programs each and limits that are far too long; short, to see that everything works."""
    numbers, at, lines = random.Random(SEED), 0, []
    for number in range(1, QUICK_JOBS + 1):
        at += int(numbers.expovariate(1 / 300))
        user, program = numbers.randrange(4), numbers.randrange(2)
        run = max(1, int((user + 1) * 120 * 5**program * numbers.lognormvariate(0, 0.3)))
        lines.append(f"{number} {at} 5 {run} {1 + program} -1 -1 {1 + program} 36000 -1 1 {user} 1 {program} 1 -1 -1 -1\n")
    path.write_text("; MaxProcs: 64\n" + "".join(lines))
    return path


def add_distributions(result: Result, all_: list[Judged], unit: str, unit_s: float) -> None:
    """A row for each user: x is the share of users up to it."""
    for one in all_:
        for name in one.predictors:
            errors = one.errors_s(name)
            for rank, error in enumerate(errors, 1):
                result.add(one.what, name, 100 * rank / len(errors), unit, [error / unit_s])


def publish(result: Result, all_: list[Judged], points: dict[str, float], percent: float, unit: str) -> None:
    """The papers' numbers stand in each panel."""
    for one in all_:
        for who, value in points.items():
            result.add(one.what, who, percent, unit, [value], "published")


def stairs(axes: Axes, rows: list[dict], what: str, log_x: bool) -> None:
    """Shares of users by their error."""
    chosen = [row for row in rows if row["what"] == what]
    known = [pair for pair in figures.series_of(rows) if pair[1] != "published"]
    published = [pair for pair in figures.series_of(rows) if pair[1] == "published"]
    for name, kind in figures.series_of(chosen):
        points = sorted((row["mean"], row["x"]) for row in chosen if (row["series"], row["kind"]) == (name, kind))
        x, y = [x for x, _ in points], [y for _, y in points]
        if kind == "published":
            style = {"color": figures.COLOR_OF_KIND[kind], "zorder": IN_FRONT, "linestyle": ""}
            marker = figures.MARKERS[published.index((name, kind)) % len(figures.MARKERS)]
            axes.plot(x, y, marker=marker, label=figures.label(f"{name}: {x[0]:g}", kind), **style)
        else:
            color = figures.COLORS[known.index((name, kind)) % len(figures.COLORS)]
            axes.step([x[0], *x], [0, *y], where="post", label=figures.label(name, kind), color=color)
    axes.set_title(what, fontsize=9)
    axes.set_xlabel(f"a user's median absolute error, {chosen[0]['unit']}")
    axes.set_ylabel("% of users")
    axes.set_ylim(0, 100)
    axes.grid(True, alpha=0.3)
    if log_x:
        axes.set_xscale("log")
    axes.legend(loc="upper left" if log_x else "lower right", fontsize=7, framealpha=0.7)


def whats(rows: list[dict]) -> list[str]:
    return list(dict.fromkeys(row["what"] for row in rows))
