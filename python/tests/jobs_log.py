"""Logs that are made up, for the tests of `tidepool.jobs`."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "; MaxProcs: 64\n"
JOBS = 500
"""Of the log that most tests share."""


def lines(jobs: int, seed: int = 1, users: int = 5) -> list[list[int]]:
    """Jobs of users who each have programs of their own, with requests that are round and too long."""
    numbers = random.Random(seed)
    out, at = [], 0
    for number in range(1, jobs + 1):
        at += int(numbers.expovariate(1 / 300))
        user = numbers.choice(range(users))
        program = numbers.choice(range(3))
        run = max(1, int((user + 1) * 100 * 4**program * numbers.lognormvariate(0, 0.2)))
        request = 600 * (1 + 4 ** (program + 1) * (user + 1))
        # Now and then nothing is said of a limit, or of a wait.
        request = -1 if numbers.random() < 0.03 else request
        wait = -1 if numbers.random() < 0.03 else int(numbers.expovariate(1 / 600))
        processors = 2**program
        out.append(
            [number, at, wait, run, processors, -1, -1, processors, request, -1, 1, user, 1, program, 1, -1, -1, -1]
        )
    return out


def write(path: Path, rows: list[list[int]]) -> Path:
    path.write_text(HEAD + "".join(" ".join(map(str, row)) + "\n" for row in rows))
    return path
