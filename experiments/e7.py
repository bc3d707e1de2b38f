"""E7, E8, E9, E10 (ADA-FS: ForHLR II 5.4, Figure 10, and BeeOND/GekkoFS 5.3, Figure 12): stage-out beside an application."""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from pathlib import Path

from beside import (
    RUN_TIME, SLOWDOWN, SLOWDOWN_BESIDE, Beside, Copies, Solver, Steps, TooShort, all_cores, begin_beside, draw, held_back,
    in_turn, judge, long_enough, median_of, percent_longer,
)
from harness import Pool, Result, Setting

__all__ = ["TITLE", "draw", "measure"]
TITLE = "stage-out from a pool beside an application that computes and writes there, by cores and by where the copy runs"
DAEMONS = 4
# As at the paper's metadata server: four processes; here threads of one.
THREADS_OF_ONE = 4
NONE, ONE, EACH = "no copy", "one copier, on the last core", "one copier for each daemon"
ONE_HELD, EACH_HELD = f"{ONE}, held back", f"{EACH}, held back"
CASES = (NONE, ONE, EACH, ONE_HELD, EACH_HELD)
# Of all copiers together, in bytes/s.
LIMIT = 50_000_000
# NAStJA writes at every 20th step, OpenFOAM 95 files of each process.
EVERY = 20
FILES, FILE_BYTES = 95, 100_000
LISTING, COPY, INDEX = "listing the source, nothing else", "time of the copy", "until all of the source is listed"
WHILE_INDEXED, WHILE_DATA = "slowdown while the source is listed", "slowdown afterwards"
PAPER = {
    "cores": "16, 19 and 20 of 20 on 23 nodes; 24 nodes with one idle, the metadata server (E8)",
    "copiers": "none; four dcp processes on the metadata server's node; one on each node",
    "16 of 20 cores": "run times similar with and without copies",
    "19 and 20 of 20 cores": "slower with one dcp process on each node, most at the beginning, while data are indexed; not with four on one node",
    "stage-out afterwards": "about 30 s, of which 6 s pure transfer",
}
PAPER_SECONDS, PAPER_TRANSFER_SECONDS = 30.0, 6.0


class Case:
    """Data in a pool, and the application beside which they are copied out."""

    def __init__(self, setting: Setting, solver: Solver, target: Path) -> None:
        self.setting, self.solver, self.target = setting, solver, target
        self.cores = all_cores()
        self.steps: dict[int, int] = {}

    def fill(self, written_steps: int) -> None:
        words = ["workload", "run", "openfoam", "--pool", "experiment", "--client", self.setting.args.client, "--keep"]
        words += ["--processes", str(DAEMONS), "--steps", str(written_steps), "--every", "1", "--files", str(FILES)]
        self.tidepool(*words, "--file-bytes", str(FILE_BYTES), "--compute-seconds", "0", "/data")

    def cp(self, limit: int | None, threads: int, source: str, *target: str) -> list[str]:
        command = [str(self.setting.command), "cp", "--json", "--pool", "experiment", "--threads", str(threads)]
        if limit:
            command = held_back(self.setting, [*command, "--bwlimit", str(limit)])
        return [*command, "-T", f"pool:/data/openfoam{source}", str(self.target.joinpath(*target))]

    def longer(self) -> None:
        self.steps = {used: 2 * steps for used, steps in self.steps.items()}

    def commands(self, case: str) -> list[list[str]]:
        held = case in (ONE_HELD, EACH_HELD)
        if case in (ONE, ONE_HELD):
            last = ["taskset", "-c", str(self.cores[-1])]
            return [[*last, *self.cp(LIMIT if held else None, THREADS_OF_ONE, "")]]
        if case in (EACH, EACH_HELD):
            limit = LIMIT // DAEMONS if held else None
            return [self.cp(limit, 1, f"/processor{n}", f"processor{n}") for n in range(DAEMONS)]
        return []

    def run(self, case: str, used: int) -> tuple[Steps, Beside | None]:
        """The application on the first cores, and the copies that go on at the same time."""
        self.target.mkdir()
        self.tidepool("mkdir", "--pool", "experiment", "/blocks")
        running = self.solver.start(self.cores[:used], self.steps[used], EVERY, self.inside())
        copies = None
        try:
            running.go()
            begin_beside(self.setting)
            commands = self.commands(case)
            copies = Copies(self.setting, commands) if commands else None
            steps = running.finish()
            beside = copies.finish() if copies else None
        except BaseException:
            running.end()
            if copies:
                copies.end()
            raise
        self.clean()
        return steps, beside

    def inside(self) -> list[str]:
        """Runs a program in the pool, with the directory to write to as its last word."""
        door = ["exec", "--pool", "experiment", "--client", self.setting.args.client, "--"]
        return [str(self.setting.command), *door, "sh", "-c", 'exec "$@" "$TIDEPOOL_DIR/blocks"', "sh"]

    def tidepool(self, *words: str) -> None:
        self.setting.note([str(self.setting.command), *words])
        self.setting.capture([str(self.setting.command), *words])

    def clean(self) -> None:
        self.tidepool("rm", "--pool", "experiment", "-r", "/blocks")
        shutil.rmtree(self.target)

    def afterwards(self) -> tuple[float, float]:
        """Seconds of listing the source alone, and of copying it with nothing beside."""
        began = time.monotonic()
        self.tidepool("cp", "--json", "--dry-run", "--pool", "experiment", "-T", "pool:/data/openfoam", str(self.target))
        listing = time.monotonic() - began
        self.target.mkdir()
        copied = Copies(self.setting, [self.cp(None, THREADS_OF_ONE, "")]).finish()
        shutil.rmtree(self.target)
        return listing, copied.ended - copied.began


def measure(setting: Setting) -> Result:
    setting.fewer_repeats(1)
    solver = Solver(setting)
    cores = all_cores()
    # As 20, 19 and 16 of 20.
    used = sorted({len(cores), len(cores) - 1, max(1, len(cores) * 16 // 20)}, reverse=True)
    seconds, written = (0.8, 1) if setting.quick else (6.0, 2)
    result = Result(f"cores of the application, of {len(cores)}")
    setting.need_space(setting.memory, 3 * DAEMONS * written * FILES * FILE_BYTES)
    target = setting.memory.path / f"{setting.work.name}-out"
    try:
        with Pool(setting, setting.memory, DAEMONS):
            case = Case(setting, solver, target)
            case.fill(written)
            for count in used:
                case.steps[count] = solver.steps_in(seconds, cores[:count])
            samples = long_enough(lambda: collect(case, used), case.longer)
    finally:
        shutil.rmtree(target, ignore_errors=True)
    for (what, series, x), values in samples.items():
        result.add(what, series, x, "%" if "slowdown" in what else "s", values)
    publish(result)
    conclude(result, used, len(cores))
    result.details.update(
        paper=PAPER, daemons=DAEMONS, files=DAEMONS * written * FILES, file_bytes=FILE_BYTES, limit_bytes_per_second=LIMIT,
        steps=case.steps,
    )
    return result


def collect(case: Case, used: list[int]) -> dict[tuple[str, str, float], list[float]]:
    """All cases in turn within each repeat, so that what else happens here meets all alike."""
    found: dict[tuple[str, str, float], list[float]] = {}

    def add(what: str, series: str, x: float, value: float) -> None:
        found.setdefault((what, series, x), []).append(value)

    for _ in range(case.setting.repeats):
        listing, copy = case.afterwards()
        add(LISTING, "afterwards, nothing beside", 0, listing)
        add(COPY, "afterwards, nothing beside", 0, copy)
        for count in used:
            done = one_round(case, count)
            alone = statistics.mean(steps.step() for series, steps, _ in done if series == NONE)
            for series, steps, beside in done:
                add(RUN_TIME, series, count, steps.seconds())
                for what, value in (compared(steps, beside, alone) if beside else {}).items():
                    add(what, series, count, value)
    return found


def one_round(case: Case, count: int) -> list[tuple[str, Steps, Beside | None]]:
    done = []
    for series in in_turn(CASES):
        steps, beside = case.run(series, count)
        if beside and steps.slowdown(beside.began, beside.ended) is None:
            raise TooShort
        done.append((series, steps, beside))
        print(f"  {count} cores, {series}: {steps.seconds():.2f} s", file=sys.stderr)
    return done


def compared(steps: Steps, beside: Beside, alone: float) -> dict[str, float]:
    """What a run beside a copy says, against the rest of it and a step `alone`; a part of the copy that lies outside of the run says nothing."""
    rest = steps.step_outside(beside.began, beside.ended)
    parts = {
        SLOWDOWN_BESIDE: steps.step_between(beside.began, beside.ended),
        WHILE_INDEXED: steps.step_between(beside.began, beside.indexed),
        WHILE_DATA: steps.step_between(beside.indexed, beside.ended),
    }
    told = {what: percent_longer(step, rest) for what, step in parts.items() if step is not None}
    told[SLOWDOWN] = percent_longer(steps.step(), alone)
    return told | {COPY: beside.ended - beside.began, INDEX: beside.indexed - beside.began}


def publish(result: Result) -> None:
    result.add(COPY, "dcp, 23 nodes, afterwards", 0, "s", [PAPER_SECONDS], "published")
    indexing = PAPER_SECONDS - PAPER_TRANSFER_SECONDS
    result.add(LISTING, "dcp, 23 nodes, all but the transfer", 0, "s", [indexing], "published")


def conclude(result: Result, used: list[int], cores: int) -> None:
    for count in used:
        where = f"{count} of {cores} cores compute, "
        for series in (ONE, EACH):
            whole, beside = (median_of(result, what, series, count) for what in (SLOWDOWN, SLOWDOWN_BESIDE))
            times = [median_of(result, what, series, count) for what in (COPY, INDEX)]
            result.findings.append(
                f"{where}{series}: {whole:.1f} % slower over the whole run, {beside:.1f} % while it goes on (medians); the copy takes "
                f"{times[0]:.2f} s, all of the source is listed after {times[1]:.2f} s"
            )
        for series in (ONE_HELD, EACH_HELD):
            judge(result, series, count, where)
            result.findings.append(f"{where}{series}: the copy takes {median_of(result, COPY, series, count):.2f} s")
    alone = "afterwards, nothing beside"
    listing, copy = median_of(result, LISTING, alone, 0), median_of(result, COPY, alone, 0)
    result.findings.append(
        f"afterwards, nothing beside: listing alone takes {listing:.3f} s, {100 * listing / copy:.0f} % of the {copy:.2f} s of listing and "
        f"copying at once; bar 50 % {'met' if listing < copy / 2 else 'NOT met'}; published: 80 % of 30 s"
    )
    spread = [row for row in result.rows if row.what == RUN_TIME and row.series == NONE]
    scatter = max(max(row.values) / statistics.median(row.values) - 1 for row in spread)
    result.findings.append(f"run times without a copy are up to {100 * scatter:.1f} % above their median: less is no difference")
