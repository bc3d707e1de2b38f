"""How predictors are judged on a log: which jobs teach, which are judged, and by what.

*temporal* is honest: the first part of the log warms up, the rest is judged, and a job teaches from its end on. The
compiled predictors learn after each job. A batch learner is trained several times: each time from all jobs that are
over when the next stretch of judged jobs begins. Its features say at each job's submission what was known then.

*random* is what the papers' author published: half of the jobs, taken at random, teach, also about jobs before them. It
leaks the future, and exists to reproduce their figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidepool import _native
from tidepool.jobs._needs import need
from tidepool.jobs.log import UNKNOWN, end_s, whole_numbers

for _module in ("numpy", "sklearn.base"):
    need(_module, "jobs", "judging predictors")

import numpy as np
from sklearn.base import clone

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

JOBS_OF_USER_MIN: int = _native.jobs_of_user_min()
"""Users with fewer judged jobs are not looked at one by one."""
TRAINED_MIN = 2
"""Jobs without which nothing can be trained."""


class ProtocolError(ValueError):
    """A log cannot be judged like that."""


@dataclass(frozen=True)
class Split:
    """Places of jobs in a log."""

    kind: str
    judged: NDArray[np.int64]
    """In ascending order."""
    blocks: list[tuple[NDArray[np.int64], NDArray[np.int64]]]
    """For each training those that teach, and those that are predicted then."""


def temporal(log: pd.DataFrame, warm_up: float, trainings: int) -> Split:
    """The first `warm_up` of the jobs teaches only; batch learners are trained so many times."""
    if not 0 < warm_up < 1:
        raise ProtocolError(f"warm-up {warm_up} is no share between 0 and 1")
    if trainings < 1:
        raise ProtocolError("something has to be trained: trainings is at least 1")
    judged = np.arange(int(len(log) * warm_up), len(log))
    ends_s, submits_s = end_s(log), whole_numbers(log["submit_s"])
    blocks = []
    for block in np.array_split(judged, min(trainings, max(len(judged), 1))):
        over = np.flatnonzero(ends_s[: block[0]] <= submits_s[block[0]]) if len(block) else block
        if len(over) < TRAINED_MIN:
            raise ProtocolError(
                f"{len(over)} jobs are over when the first judged one is submitted: too few to learn from"
            )
        blocks.append((over, block))
    return Split("temporal", judged, blocks)


def random(log: pd.DataFrame, share: float, seed: int) -> Split:
    """So large a share, taken at random, teaches. Leaks the future."""
    order = np.random.default_rng(seed).permutation(len(log))
    cut = int(len(log) * share)
    if min(cut, len(log) - cut) < TRAINED_MIN:
        raise ProtocolError(f"{len(log)} jobs are too few to learn from and to judge")
    teach, judged = np.sort(order[:cut]), np.sort(order[cut:])
    return Split("random", judged, [(teach, judged)])


@dataclass(frozen=True)
class Said:
    """What a batch learner predicted, in seconds; NaN elsewhere."""

    judged_s: NDArray[np.float64]
    taught_s: NDArray[np.float64]
    """Of the jobs that the first training learned from."""


def predicted(estimator: Any, rows: pd.DataFrame, log: pd.DataFrame, split: Split) -> Said:
    """Trains an estimator for each block and asks it; no prediction is below 0 or above the request."""
    runs = log["run_s"].to_numpy().astype("float64")
    request = whole_numbers(log["request_s"]).astype("float64")
    most = np.where(request > UNKNOWN, request, np.inf)
    said = Said(np.full(len(log), np.nan), np.full(len(log), np.nan))
    for number, (teach, ask) in enumerate(split.blocks):
        model = clone(estimator).fit(rows.iloc[teach], runs[teach])
        said.judged_s[ask] = np.clip(model.predict(rows.iloc[ask]), 0, most[ask])
        if number == 0:
            said.taught_s[teach] = np.clip(model.predict(rows.iloc[teach]), 0, most[teach])
    return said


@dataclass(frozen=True)
class Measures:
    """How good predictions were; times are seconds. The same code computes `tidepool jobs evaluate`."""

    jobs: int
    of_users_s: list[float]
    """The median absolute error of each user with enough judged jobs, ascending."""
    under: float
    """Share of jobs that ran for longer than predicted."""
    mean_s: float
    """Mean absolute error over all jobs."""
    pinball_s: list[float]
    """Mean pinball loss at 50, 90 and 95 %."""
    covered: list[float]
    """Share of jobs that were over within the times for 90 and 95 %."""
    covered_tenths: list[list[float]]
    """The same for each tenth of the jobs."""

    def at_user_s(self, quantile: float) -> float | None:
        """The error of the user there, such as 0.5 for the one in the middle."""
        if not self.of_users_s:
            return None
        place = min(max(quantile, 0.0), 1.0) * (len(self.of_users_s) - 1)
        low, part = int(place), place - int(place)
        high = self.of_users_s[min(low + 1, len(self.of_users_s) - 1)]
        return self.of_users_s[low] * (1.0 - part) + high * part


def measured(log: pd.DataFrame, judged: NDArray[np.int64], said: NDArray[np.float64]) -> Measures:
    """Of predictions of all jobs, rows as `Prediction`, those of the judged ones."""
    users = whole_numbers(log["user"])[judged].astype("<i8").tobytes()
    runs = log["run_s"].to_numpy()[judged].astype("<f8").tobytes()
    return Measures(**_native.measures(users, runs, said[judged].astype("<f8").tobytes()))


@dataclass(frozen=True)
class OfUser:
    """One user's judged jobs under one predictor."""

    user: int
    jobs: int
    taught: int
    """Jobs that the first training learned from; 0 where nothing is trained."""
    medae_s: float
    r2_judged: float | None
    r2_taught: float | None
    """None for predictors that are not trained in batches, for users without a model of their own, and where all run
    times are the same."""


def of_users(log: pd.DataFrame, split: Split, judged_s: Any, taught_s: Any = None, jobs_min: int = 1) -> list[OfUser]:
    """A line for each user with enough judged jobs, by its number; `jobs_min` gave it a model of its own."""
    runs = log["run_s"].to_numpy().astype("float64")
    users = whole_numbers(log["user"])
    teach = split.blocks[0][0]
    lines = []
    for user in np.unique(users[split.judged]):
        mine = split.judged[users[split.judged] == user]
        if len(mine) < JOBS_OF_USER_MIN:
            continue
        learned = teach[users[teach] == user] if taught_s is not None else teach[:0]
        lines.append(
            OfUser(
                user=int(user),
                jobs=len(mine),
                taught=len(learned),
                medae_s=float(np.median(np.abs(judged_s[mine] - runs[mine]))),
                r2_judged=r2(runs[mine], judged_s[mine]),
                r2_taught=r2(runs[learned], taught_s[learned]) if len(learned) >= jobs_min else None,
            )
        )
    return lines


def r2(real: NDArray[np.float64], said: NDArray[np.float64]) -> float | None:
    """The share of run times' variance that is explained; below 0 where their mean would have said more."""
    scatter = float(((real - real.mean()) ** 2).sum()) if len(real) else 0.0
    return 1.0 - float(((real - said) ** 2).sum()) / scatter if scatter > 0 else None
