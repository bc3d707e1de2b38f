"""What a suite is to the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from doors import Place, Ran, User
from trees import Trees
from verdicts import Outcome, Verdict

Wanted = Callable[[str], bool]


class Suite(Protocol):
    name: str
    title: str
    # Of verdicts.DOORS.
    doors: tuple[str, ...]
    # By door: fewer tests than this are no run of the suite.
    floors: dict[str, int]
    user: User | None

    def prepare(self, trees: Trees) -> None:
        """Fetches and builds it. Raises trees.Missing where it cannot be had."""

    def outcomes(self, place: Place, wanted: Wanted) -> Iterator[Outcome]:
        """Runs the tests that are wanted, one after the other."""


def by_code(test: str, ran: Ran, seconds: float, skips: tuple[int, ...] = ()) -> Outcome:
    """Of a program that says by its exit code what came out."""
    if ran.hung:
        return Outcome(test, Verdict.FAILED, f"had not ended after {seconds:.0f} s")
    if ran.code == 0:
        return Outcome(test, Verdict.PASSED)
    if ran.code in skips:
        return Outcome(test, Verdict.SKIPPED, last_line(ran.said))
    return Outcome(test, Verdict.FAILED, f"ended with {ran.code}: {last_line(ran.said)}")


def last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "without a word"
