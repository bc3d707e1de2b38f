"""What tests of a suite came to, what is excluded and why, and whether that is as it should be. No I/O."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

DOORS = ("below", "fuse", "preload")
COLUMNS = ("suite", "door", "run", "passed", "excluded", "below", "failed", "skipped", "stale", "seconds")
# A reason that begins so is of a test that fails now and then: it may pass, too.
SOMETIMES = "sometimes: "
NUMBERS = re.compile(r"(.+ )(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)$")


class Verdict(Enum):
    PASSED = "passed"
    FAILED = "failed"
    # The test said of itself that it cannot be run here.
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Outcome:
    test: str
    verdict: Verdict
    # Why, in a line, of what did not pass.
    why: str = ""


class BadExclusions(Exception):
    """The text says which line, and what is wrong with it."""


@dataclass(frozen=True)
class Exclusion:
    suite: str
    doors: tuple[str, ...]
    test: str
    reason: str

    def may_pass(self) -> bool:
        return self.reason.startswith(SOMETIMES)


def read_exclusions(text: str) -> list[Exclusion]:
    """Lines `suite | door | test | reason`; a door is fuse, preload or both. Never below: what fails there needs no exclusion. Tests of
    one name with numbers may stand in one line: `chmod/00 52-54,61`."""
    found: list[Exclusion] = []
    seen: set[tuple[str, str, str]] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        words = [word.strip() for word in line.split("|")]
        if len(words) != 4 or not all(words):
            raise BadExclusions(f"line {number}: write 'suite | door | test | reason', each with something in it")
        suite, door, test, reason = words
        if door not in ("fuse", "preload", "both"):
            raise BadExclusions(f"line {number}: '{door}' is no door; write fuse, preload or both")
        doors = ("fuse", "preload") if door == "both" else (door,)
        tests = numbered(test)
        if not tests:
            raise BadExclusions(f"line {number}: '{test}' names no test; write numbers upwards, as 52-54,61")
        for one, each in itertools.product(doors, tests):
            if (suite, one, each) in seen:
                raise BadExclusions(f"line {number}: {suite} {each} is excluded for {one} twice")
            seen.add((suite, one, each))
        found += [Exclusion(suite, doors, each, reason) for each in tests]
    return found


def numbered(test: str) -> list[str]:
    """`chmod/00 52-54,61` is four tests, any other name one."""
    match = NUMBERS.match(test)
    if not match:
        return [test]
    parts = [part.partition("-") for part in match[2].split(",")]
    return [f"{match[1]}{n}" for first, _, last in parts for n in range(int(first), int(last or first) + 1)]


@dataclass
class Row:
    """One suite through one door. Tests that ran have passed, or failed in one of three ways."""

    suite: str
    door: str
    passed: int = 0
    excluded: int = 0
    # Failed through the door, and in the same run on the file system below the pool as well.
    below: int = 0
    failed: int = 0
    skipped: int = 0
    stale: int = 0
    seconds: float = 0.0
    # What is wrong, each in a line. With none the row is as it should be.
    wrong: list[str] = field(default_factory=list)
    # What is worth knowing.
    notes: list[str] = field(default_factory=list)

    @property
    def run(self) -> int:
        return self.passed + self.excluded + self.below + self.failed

    def cells(self) -> dict[str, str | int | float]:
        return {column: getattr(self, column) for column in COLUMNS}


def judge(
    suite: str,
    door: str,
    outcomes: Iterable[Outcome],
    exclusions: list[Exclusion],
    failing_below: set[str],
    floor: int,
    whole: bool = True,
) -> Row:
    """`whole`: all tests of the suite were asked for, so that there is a least number of them, and each exclusion has its test."""
    row = Row(suite, door)
    mine = {e.test: e for e in exclusions if e.suite == suite and door in e.doors}
    seen: set[str] = set()
    for outcome in outcomes:
        if outcome.test in seen:
            row.wrong.append(f"{outcome.test}: reported twice")
        seen.add(outcome.test)
        count(row, outcome, mine.get(outcome.test), failing_below)
    if whole:
        for test in sorted(mine.keys() - seen):
            row.stale += 1
            row.wrong.append(f"{test}: is excluded, and no such test ran")
        # One that fails everywhere has tested nothing.
        if row.run - row.below < floor:
            row.wrong.append(f"{row.run} tests ran, {row.below} of them in vain; at least {floor} that work are expected")
    elif row.run == 0:
        row.wrong.append("no test ran")
    return row


def count(row: Row, outcome: Outcome, exclusion: Exclusion | None, failing_below: set[str]) -> None:
    match outcome.verdict:
        case Verdict.SKIPPED:
            row.skipped += 1
        case Verdict.PASSED:
            row.passed += 1
            if exclusion and not exclusion.may_pass():
                row.stale += 1
                row.wrong.append(f"{outcome.test}: PASSES, but is excluded ({exclusion.reason}); take it out of the list")
        case Verdict.FAILED if row.door == "below":
            row.below += 1
            row.notes.append(f"{outcome.test}: {outcome.why}")
        case Verdict.FAILED if exclusion:
            row.excluded += 1
        case Verdict.FAILED if outcome.test in failing_below:
            row.below += 1
        case Verdict.FAILED:
            row.failed += 1
            row.wrong.append(f"{outcome.test}: {outcome.why}")


def table(rows: list[Row]) -> str:
    """The rows, in columns."""
    lines = [list(COLUMNS)]
    for row in rows:
        lines.append([f"{value:.0f}" if isinstance(value, float) else str(value) for value in row.cells().values()])
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    # Words to the left, numbers to the right.
    return "\n".join(
        "  ".join(cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths)))
        for line in lines
    )
