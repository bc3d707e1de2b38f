"""J8 (Miranda et al. 2019, Table IV): a program that computes, beside staging by the node's stager."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Optional

from beside import (
    IDLE, RUN_TIME, SLOWDOWN, SLOWDOWN_BESIDE, Solver, Steps, TooShort, all_cores, begin_beside, draw, in_turn,
    judge, knows_gentle, long_enough, median_of, percent_longer,
)
from harness import Failed, Result, Setting
from stagers import Stager

__all__ = ["TITLE", "draw", "measure"]
TITLE = "a solver like HPCG beside stage-in and stage-out on its node, held back or not"
ALONE, OUT, IN = "alone", "beside a stage-out", "beside a stage-in"
# Held back: gentle, and in bytes/s; each is told whether it keeps the bar.
LIMITS = (100_000_000, 50_000_000, 25_000_000)
HELD = {f", held back to {limit // 1_000_000} MB/s": limit for limit in LIMITS}
CASES = (ALONE, OUT, IN, *(way + held for held in HELD for way in (OUT, IN)))
# a:// is the node's fast storage, b:// what the site shares.
DIRECTIONS = {OUT: ("a://data", "b://new"), IN: ("b://data", "a://new")}
FILES, FILE_BYTES, QUICK_FILE_BYTES = 16, 8 << 20, 1 << 20
STAGING = "time of the staging"
# Of a case; from when until when data were staged.
Run = tuple[str, Steps, Optional[tuple[float, float]]]
PAPER = {ALONE: 122.0, OUT: 137.0, IN: 142.0}
PAPER_SERIES = "NORNS, HPCG, 48 cores"


class Data:
    """The same files at both ends, and where copies of them go."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.file_bytes = QUICK_FILE_BYTES if setting.quick else FILE_BYTES
        self.shared = setting.disk.path / setting.work.name

    def fill(self, top: Path) -> None:
        (top / "data").mkdir(parents=True)
        block = bytes(range(256)) * 4096
        for number in range(FILES):
            with (top / "data" / f"{number}").open("wb") as file:
                for _ in range(self.file_bytes // len(block)):
                    file.write(block)
                # So that nothing is left to be written beside the solver.
                os.fsync(file.fileno())

    def stager(self, held: bool) -> Stager:
        """Of a held stage the stager's tasks are gentle."""
        gentle = held and knows_gentle(self.setting)
        prefix = IDLE if held and not gentle else []
        return Stager(self.setting, prefix, b=self.shared, more=("gentle = true",) if gentle else ())


def measure(setting: Setting) -> Result:
    setting.fewer_repeats(1)
    solver, data, cores = Solver(setting), Data(setting), all_cores()
    steps = solver.steps_in(0.8 if setting.quick else 6.0, cores)
    result = Result("")
    for store in (setting.memory, setting.disk):
        setting.need_space(store, 2 * FILES * data.file_bytes)
    data.fill(data.shared)

    def longer() -> None:
        nonlocal steps
        steps *= 2

    try:
        runs = long_enough(lambda: rounds(solver, data, steps, cores), longer)
    finally:
        shutil.rmtree(data.shared)
    for (what, case), values in told_by(runs).items():
        result.add(what, case, 0, "%" if "slowdown" in what else "s", values)
    publish(result)
    conclude(result)
    result.details.update(
        processes=len(cores), steps=steps, side=solver.side, files=FILES, file_bytes=data.file_bytes, table_iv=PAPER
    )
    return result


def rounds(solver: Solver, data: Data, steps: int, cores: list[int]) -> list[list[Run]]:
    """All cases in turn within each repeat."""
    runs: list[list[Run]] = []
    for _ in range(data.setting.repeats):
        runs.append([])
        for case in in_turn(CASES):
            run, staging = one(solver, data, case, steps, cores)
            if staging and run.slowdown(*staging) is None:
                raise TooShort
            runs[-1].append((case, run, staging))
            print(f"  {case}: {run.seconds():.2f} s", file=sys.stderr)
    return runs


def told_by(rounds: list[list[Run]]) -> dict[tuple[str, str], list[float]]:
    """Values by what they are and the case; slowdowns against the mean of the runs alone of the same round."""
    found: dict[tuple[str, str], list[float]] = {}
    for runs in rounds:
        alone = statistics.mean(run.step() for case, run, _ in runs if case == ALONE)
        window = last_window(runs)
        for case, run, staging in runs:
            rows = {RUN_TIME: run.seconds()}
            if staging:
                rows |= compared(run, staging, alone)
            elif slowdown := run.slowdown(*(run.times[0] + at for at in window)):
                # What there is to be seen when nothing goes on.
                rows[SLOWDOWN_BESIDE] = slowdown
            for what, value in rows.items():
                found.setdefault((what, case), []).append(value)
    return found


def last_window(runs: list[Run]) -> tuple[float, float]:
    """From when until when of its run data were staged in the last run of a round where they were."""
    run, staging = next((run, staging) for _, run, staging in reversed(runs) if staging)
    return staging[0] - run.times[0], staging[1] - run.times[0]


def one(solver: Solver, data: Data, case: str, steps: int, cores: list[int]) -> tuple[Steps, tuple[float, float] | None]:
    """The solver's run, and from when until when data were staged."""
    direction = next((words for name, words in DIRECTIONS.items() if case.startswith(name)), None)
    held = next((limit for words, limit in HELD.items() if case.endswith(words)), None)
    if direction is None:
        running = solver.start(cores, steps)
        running.go()
        return running.finish(), None
    with data.stager(held is not None) as stager:
        if direction[0].startswith("a"):
            data.fill(stager.dir / "a")
        limit = ["--bandwidth", str(held)] if held else []
        command = [str(data.setting.command), "stage", "--control", "--socket", f"{stager.dir}/run/control.socket"]
        command += ["submit", "--wait", *limit, "copy", *direction]
        data.setting.note([word.replace(str(stager.dir), "STAGER") for word in command])
        running = solver.start(cores, steps)
        running.go()
        begin_beside(data.setting)
        began = time.monotonic()
        client = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=data.setting.environment())
        with ThreadPoolExecutor(1) as pool:
            # Whichever is over first.
            waiting = pool.submit(lambda: (client.wait(), time.monotonic()))
            try:
                run = running.finish()
            except BaseException:
                client.kill()
                raise
            code, ended = waiting.result()
        staging = began, ended
        if code:
            raise Failed(f"'{data.setting.scrub(command)}' ended with {code}; its message is above")
        check(stager, direction[1], data.file_bytes)
        shutil.rmtree(data.shared / "new", ignore_errors=True)
        return run, staging


def check(stager: Stager, target: str, file_bytes: int) -> None:
    """Something was measured only when all of it has arrived."""
    there = [file.stat().st_size for file in (stager.mounts[target[0]] / "new").iterdir()]
    if there != [file_bytes] * FILES:
        raise Failed(f"{len(there)} files of {sum(there)} bytes were staged, not {FILES} of {file_bytes} each")


def compared(run: Steps, staging: tuple[float, float], alone: float) -> dict[str, float]:
    told = {SLOWDOWN: percent_longer(run.step(), alone), STAGING: staging[1] - staging[0]}
    beside = run.slowdown(*staging)
    return told if beside is None else told | {SLOWDOWN_BESIDE: beside}


def publish(result: Result) -> None:
    for case, seconds in PAPER.items():
        result.add(RUN_TIME, f"{PAPER_SERIES}, {case}", 0, "s", [seconds], "published")
        if case != ALONE:
            slower = percent_longer(seconds, PAPER[ALONE])
            result.add(SLOWDOWN, f"{PAPER_SERIES}, {case}", 0, "%", [slower], "published")


def conclude(result: Result) -> None:
    for case in (OUT, IN):
        whole, beside = (median_of(result, what, case, 0) for what in (SLOWDOWN, SLOWDOWN_BESIDE))
        published = percent_longer(PAPER[case], PAPER[ALONE])
        result.findings.append(
            f"{case}: {whole:.1f} % slower over the whole run, {beside:.1f} % while it goes on (medians), which is "
            f"{median_of(result, STAGING, case, 0):.2f} s; published: {published:.0f} %, staging about as long as the run"
        )
        for held in HELD:
            judge(result, case + held, 0, "")
            result.findings.append(f"{case + held}: staging takes {median_of(result, STAGING, case + held, 0):.2f} s")
    judge(result, ALONE, 0, "with nothing beside it, in the same part of a run: ")
    alone = next(row.values for row in result.rows if (row.what, row.series) == (RUN_TIME, ALONE))
    scatter = 100 * (max(alone) / statistics.median(alone) - 1)
    result.findings.append(f"alone, runs are up to {scatter:.1f} % above their median of {statistics.median(alone):.2f} s: less is no difference")
