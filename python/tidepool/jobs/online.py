"""Predictors that learn job by job, and what they would have said of a log's jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tidepool import _native
from tidepool.jobs._needs import need
from tidepool.jobs.log import packed

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import ArrayLike, NDArray

PREDICTORS: dict[str, str] = dict(_native.predictors())
"""Name and description of each; the first is the default."""


class Prediction(NamedTuple):
    """Seconds from a job's start."""

    run_s: float
    within_90_s: float
    """Within which nine of ten such jobs are over."""
    within_95_s: float


class Online:
    """Predicts a job's run time when it is submitted, and learns from it when it is over.

    It is told of one system's jobs in the order of time. `id` is of no other job that is waiting or running; what is
    not known is `None`. Whole seconds, but for run times.
    """

    def __init__(self, predictor: str = "default") -> None:
        self._native = _native.Predictor(predictor)
        self.predictor = predictor

    def submitted(
        self,
        id: int,
        *,
        submit_s: int,
        request_s: int | None = None,
        processors: int = 1,
        user: int | None = None,
        group: int | None = None,
        executable: int | None = None,
        queue: int | None = None,
        partition: int | None = None,
    ) -> Prediction:
        """What is said of a job; asked once for each."""
        said = self._native.submitted(id, submit_s, request_s, processors, user, group, executable, queue, partition)
        return Prediction(*said)

    def started(self, id: int, at_s: int) -> None:
        """It runs: others like it are likely to run for as long as it has, and longer."""
        self._native.started(id, at_s)

    def ended(self, id: int, run_s: float) -> None:
        """It ran for so long, which teaches."""
        self._native.ended(id, run_s)

    def cancelled(self, id: int) -> None:
        """It will never have run, which teaches nothing."""
        self._native.cancelled(id)


def replay(log: pd.DataFrame, predictor: str = "default") -> NDArray[np.float64]:
    """What a predictor would have said of each job of a log when it was submitted: rows as `Prediction`.

    By then only those jobs have taught that were over.
    """
    return _rows(_native.Predictor(predictor).replay(packed(log), False))


def calibrated(log: pd.DataFrame, run_s: ArrayLike) -> NDArray[np.float64]:
    """Run times that somebody predicted for each job of a log, with times within which 90 % and 95 % are over.

    These follow the errors of jobs that were over by then (adaptive conformal inference; Gibbs and Candes 2021), so
    that they hold in the long run also where jobs change. No run time is above the job's request.
    """
    numpy = need("numpy", "jobs", "predictions as arrays")
    points = numpy.asarray(run_s, dtype="<f8")
    if points.shape != (len(log),) or not numpy.isfinite(points).all():
        raise ValueError(f"a finite run time is needed for each of the {len(log)} jobs")
    return _rows(_native.calibrated(packed(log), points.tobytes()))


def _rows(said: bytes) -> NDArray[np.float64]:
    numpy = need("numpy", "jobs", "predictions as arrays")
    rows: NDArray[np.float64] = numpy.frombuffer(said, dtype="<f8").astype("float64").reshape(-1, 3)
    return rows
