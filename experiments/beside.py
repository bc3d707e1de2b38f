"""What e7 and j8 share: a program that computes (solver.c), and how much longer its steps take while something else goes on."""

from __future__ import annotations

import bisect
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import figures
from harness import Failed, Result, Setting, join_cores

SOURCE = Path(__file__).resolve().parent / "solver.c"
# Of a process: a matrix of 36 MB, more than caches hold, and a block of 0.9 MB to write, about as much as NAStJA's.
SIDE, QUICK_SIDE = 48, 24
# What is longer than the programs' start, and shorter than they take.
CALIBRATING_STEPS = 60
# Steps before anything else begins, which those beside it are compared with: a run differs from the next one by which memory and
# which neighbours it got, by more than the bar.
LEAD_SECONDS, QUICK_LEAD_SECONDS = 1.5, 0.3
# Before a run: the kernel is busy for a while with memory that was given back.
SETTLE_SECONDS = 1.0
BAR_PERCENT = 5.0
IDLE = ["chrt", "--idle", "0"]
# Twice the steps each time.
TRIES_MAX = 6
T = TypeVar("T")
SLOWDOWN = "slowdown over the whole run"
# Against the rest of the same run.
SLOWDOWN_BESIDE = "slowdown while it goes on"
RUN_TIME = "run time of the application"


@dataclass
class Steps:
    """When a run began and when each of its steps was over, on the node's monotonic clock, in seconds."""

    times: list[float]

    def seconds(self) -> float:
        return self.times[-1] - self.times[0]

    def step(self) -> float:
        """Seconds of a step, on average."""
        return self.seconds() / (len(self.times) - 1)

    def done_at(self, at: float) -> float:
        """Steps done by then, with the part of the one that was under way."""
        if at <= self.times[0]:
            return 0.0
        if at >= self.times[-1]:
            return len(self.times) - 1.0
        after = bisect.bisect_right(self.times, at)
        began, ended = self.times[after - 1], self.times[after]
        return after - 1 + (at - began) / (ended - began)

    def step_between(self, since: float, until: float) -> float | None:
        """Seconds of a step in that part of the run; None when that is no part of it."""
        since, until = max(since, self.times[0]), min(until, self.times[-1])
        return (until - since) / (self.done_at(until) - self.done_at(since)) if until > since else None

    def step_outside(self, since: float, until: float) -> float:
        """Seconds of a step in the rest of the run; infinite where there is none."""
        since, until = max(since, self.times[0]), min(until, self.times[-1])
        steps = len(self.times) - 1 - (self.done_at(until) - self.done_at(since))
        return (self.seconds() - (until - since)) / steps if steps > 0 else math.inf

    def slowdown(self, since: float, until: float) -> float | None:
        """By how many percent steps took longer then than in the rest of the run; None where one of the two is no part of it."""
        step, rest = self.step_between(since, until), self.step_outside(since, until)
        return None if step is None or math.isinf(rest) else percent_longer(step, rest)


def percent_longer(now: float, alone: float) -> float:
    return 100 * (now / alone - 1)


class TooShort(Exception):
    """A run was over before anything went on beside it."""


def long_enough(measure: Callable[[], T], longer: Callable[[], None]) -> T:
    """What is measured, with longer runs where those were too short: how long a step takes is found when others may be at work."""
    for _ in range(TRIES_MAX):
        try:
            return measure()
        except TooShort:
            print("  runs are over before anything goes on beside them: once more, with twice the steps", file=sys.stderr)
            longer()
    raise Failed(f"runs are over before anything goes on beside them, also when they are {2**TRIES_MAX} times as long as was reckoned")


@dataclass
class Beside:
    """What went on beside a run: when, on the same clock, and until when sources were listed, in the middle of them all."""

    began: float
    indexed: float
    ended: float


class Solver:
    """The program; `prefix` starts it somewhere, such as in a pool."""

    def __init__(self, setting: Setting) -> None:
        if not shutil.which("cc"):
            raise Failed("there is no cc, which the program to run beside is built with")
        self.setting, self.program = setting, setting.work / "solver"
        self.side = QUICK_SIDE if setting.quick else SIDE
        command = ["cc", "-O2", str(SOURCE), "-o", str(self.program), "-lpthread"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(f"experiments/solver.c does not build:\n{done.stderr}")

    def start(self, cores: list[int], steps: int, every: int = 0, prefix: list[str] | None = None) -> Running:
        """On so many cores as many processes. With `prefix` comes a command that adds the directory to write to."""
        words = [str(self.program), str(len(cores)), str(steps), str(self.side), str(every), *([] if prefix else ["-"])]
        command = ["taskset", "-c", join_cores(cores), *(prefix or []), *words]
        self.setting.note(command)
        if not self.setting.quick:
            time.sleep(SETTLE_SECONDS)
        return Running(command, self.setting.environment())

    def steps_in(self, seconds: float, cores: list[int]) -> int:
        """How many steps take about that long, without writing and with nobody else there."""
        run = self.start(cores, CALIBRATING_STEPS)
        run.go()
        return max(CALIBRATING_STEPS, round(seconds / run.finish().step()))


class Running:
    """A run that is ready; it computes from `go` on."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        self.child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        if self.child.stdout.readline().strip() != "ready":
            self.child.kill()
            self.child.wait()
            raise Failed("the solver did not start; its message is above")

    def go(self) -> None:
        self.child.stdin.write("go\n")
        self.child.stdin.flush()

    def finish(self) -> Steps:
        text, _ = self.child.communicate()
        if self.child.returncode:
            raise Failed(f"the solver ended with {self.child.returncode}; its message is above")
        return Steps([t / 1e9 for t in json.loads(text)["times"]])

    def end(self) -> None:
        self.child.kill()
        self.child.communicate()


def begin_beside(setting: Setting) -> None:
    time.sleep(QUICK_LEAD_SECONDS if setting.quick else LEAD_SECONDS)


class Copies:
    """Copies that run at the same time, each a process of its own."""

    def __init__(self, setting: Setting, commands: list[list[str]]) -> None:
        self.setting, self.commands = setting, commands
        self.began = time.monotonic()
        self.children = []
        for command in commands:
            setting.note(command)
            child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=setting.environment())
            self.children.append(child)

    def finish(self) -> Beside:
        reports, ended = [], self.began
        for child, command in zip(self.children, self.commands):
            text, _ = child.communicate()
            if child.returncode:
                raise Failed(f"'{self.setting.scrub(command)}' ended with {child.returncode}; its message is above")
            reports.append(json.loads(text))
            if not reports[-1]["complete"]:
                raise Failed(f"'{self.setting.scrub(command)}' is not complete")
        # Each told how long it took itself; starting it is part of what the application bears.
        ended = max(self.began + report["seconds"] for report in reports)
        indexed = statistics.median(report["seconds_index"] for report in reports)
        return Beside(self.began, min(self.began + indexed, ended), ended)

    def end(self) -> None:
        for child in self.children:
            child.kill()
            child.communicate()


def held_back(setting: Setting, command: list[str]) -> list[str]:
    """The same copy, gentle; of a build that does not know the word, by the program that sets the same policy."""
    return [*command, "--gentle"] if knows_gentle(setting) else [*IDLE, *command]


def knows_gentle(setting: Setting) -> bool:
    if "--gentle" in setting.help("cp"):
        return True
    setting.steps.add(
        "this build of tidepool knows no gentle copies: what is held back runs under 'chrt --idle 0', which sets the same policy"
    )
    return False


def all_cores() -> list[int]:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise Failed("with one core there is no core for a copy beside the application; two are the least")
    return cores


def median_of(result: Result, what: str, series: str, x: float) -> float:
    found = [row for row in result.rows if (row.what, row.series, row.x) == (what, series, x)]
    if len(found) != 1:
        raise KeyError(f"{len(found)} rows for {what}, {series}, {x}")
    return statistics.median(found[0].values)


def in_turn(cases: Sequence[str]) -> tuple[str, ...]:
    """The runs of a round: the first case, which is the one alone, once more at the end. A machine that gets slower or faster all
    the time then does so to what is compared and to what it is compared with alike."""
    return (*cases, cases[0])


def uncertainty(slowdowns: list[float]) -> float:
    """Of a median, in points: about 1.25 standard deviations by the root of n; infinite of one value, which decides nothing."""
    return 1.25 * statistics.stdev(slowdowns) / math.sqrt(len(slowdowns)) if len(slowdowns) > 1 else math.inf


def verdict(slowdown: float, unsure: float) -> str:
    """Runs that differ more than the bar is wide decide nothing, whatever their medians are."""
    if unsure < BAR_PERCENT and slowdown + unsure < BAR_PERCENT:
        return "met"
    return "NOT met" if slowdown - unsure >= BAR_PERCENT else "undecided"


def judge(result: Result, series: str, x: float, where: str) -> None:
    """A finding on a copy that is held back."""
    values = next(row.values for row in result.rows if (row.what, row.series, row.x) == (SLOWDOWN_BESIDE, series, x))
    unsure, median = uncertainty(values), statistics.median(values)
    result.findings.append(
        f"{where}{series}: {median:.1f} +- {unsure:.1f} % slower while it goes on (median); bar {BAR_PERCENT:g} % {verdict(median, unsure)}"
    )


def draw(report: dict, rows: list[dict]):
    """A panel for each quantity, a group of bars for each x; slowdowns with the bar that throttled ones have to keep."""

    def with_bar(one, what: str) -> None:
        if "slowdown" in what:
            # A run may well be a little faster than the one it is compared with.
            one.set_ylim(bottom=min(0, *(1.1 * row["min"] for row in rows if row["what"] == what)))
            figures.limit(one, BAR_PERCENT, "bar for copies that are held back")

    return figures.quantities(report, rows, with_bar)
