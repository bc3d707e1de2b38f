"""stress-ng: each stressor of its class `filesystem`, a few seconds each, with its own checks on."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import trees
from doors import Place, Ran
from suite import Wanted, by_code
from verdicts import Outcome, Verdict

# Of stress-ng's manual: not enough resources, not implemented, no metrics.
SKIPS = (3, 4)
# Beyond the time that a stressor was given.
GRACE_SECONDS = 90
# What may fail in a stressor is told by lines `fail:`; others say what it goes on without.
FAIL = re.compile(r"^stress-ng: (?:fail|error): +\[\d+\] (.*)$", re.MULTILINE)
# Who does not try, says so, and ends with 0.
NOT_TRIED = re.compile(r"skipped stressor|skipping stressor|stressor will be skipped|not implemented", re.IGNORECASE)
# Its authors run it only where a machine may be lost.
APART = re.compile(r"disabled '[\w-]+' as it may hang or reboot the machine")
# Their usual gigabyte takes a debug build longer than the time they are given.
SMALL = {"hdd": ["--hdd-bytes", "64m"], "iomix": ["--iomix-bytes", "64m"], "fallocate": ["--fallocate-bytes", "64m"]}


class StressNg:
    name = "stress-ng"
    title = "stressors of the class filesystem, each with --verify"
    doors = ("below", "fuse", "preload")
    floors = dict.fromkeys(doors, 35)
    user = None

    def prepare(self, _: trees.Trees) -> None:
        self.program = trees.program("stress-ng", "stress-ng")
        said = subprocess.run([self.program, "--class", "filesystem?"], capture_output=True, text=True, check=False)
        self.stressors = stressors(said.stdout + said.stderr)
        if not self.stressors:
            raise trees.Missing(f"{self.program} names no stressors of the class filesystem: {said.stdout}{said.stderr}")

    def outcomes(self, place: Place, wanted: Wanted) -> Iterator[Outcome]:
        for test in filter(wanted, self.stressors):
            there = place.make(f"stress-{test}")
            words = [self.program, f"--{test}", "1", "--timeout", f"{place.seconds}s", "--verify", "--temp-path", ".", *SMALL.get(test, [])]
            seconds = place.seconds + GRACE_SECONDS
            yield outcome(test, place.run(test, words, seconds, there), seconds)
            place.remove(there)


def stressors(said: str) -> list[str]:
    _, _, names = said.partition("class 'filesystem' stressors:")
    return names.split()


def outcome(test: str, ran: Ran, seconds: float) -> Outcome:
    found = by_code(test, ran, seconds, SKIPS)
    if found.verdict == Verdict.PASSED and NOT_TRIED.search(ran.said):
        return Outcome(test, Verdict.SKIPPED, NOT_TRIED.search(ran.said)[0])
    apart = APART.search(ran.said)
    if apart:
        return Outcome(test, Verdict.SKIPPED, apart[0])
    fail = FAIL.search(ran.said)
    if found.verdict != Verdict.SKIPPED and fail:
        return Outcome(test, Verdict.FAILED, fail[1])
    return found
