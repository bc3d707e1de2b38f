"""What models are told of a job. All of it is known at its submission, and nothing that came later (INVENTORY B3).

A test changes everything after a job's submission in a log and looks whether its features stay what they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidepool.jobs._needs import need
from tidepool.jobs.log import UNKNOWN, end_s, whole_numbers
from tidepool.jobs.online import replay

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

METADATA = {
    "request_s": "the time limit",
    "processors": "as many as it was given",
    "user": "number of the user",
    "group": "number of the user's group",
    "executable": "number of the program",
    "queue": "number of the queue",
    "partition": "number of the partition",
    "hour": "of the day, of the log's clock, with its fraction",
    "weekday": "0 to 6, from the log's first day on",
}
"""What the job itself says: the papers' "general meta-data" (S0 section 4)."""
REPLAYED = ("last", "last-two", "mean-10", "median-10", "max-10", "mean-ratio", "same")
"""Predictors whose predictions are features: statistics of the user's last runs, computed in the compiled half."""
HISTORY = {
    **{name: f"seconds that `tidepool jobs evaluate --predictor {name}` says" for name in REPLAYED},
    "submitted": "jobs that the user has submitted before",
    "ended": "those of them that are over",
    "in_system": "those of them that wait or run",
    "since_submit_s": "seconds since the user's submission before",
    "since_end_s": "seconds since a job of the user was last over",
}
"""What the log says of the user's jobs until then."""
FEATURES = {**METADATA, **HISTORY}
LEARNED = {name: f"seconds that the compiled predictor `{name}` says" for name in ("expert", "default")}
"""For learners that correct predictions of others."""

DAY_S = 86_400


def features(log: pd.DataFrame, *, history: bool = True, learned: bool = False) -> pd.DataFrame:
    """A row for each job, with what is not known as NaN.

    Without `history` there is only what the job itself says; `learned` adds what predictors say that learn online.
    """
    pandas = need("pandas", "jobs", "features")
    submit_s = whole_numbers(log["submit_s"])
    columns: dict[str, NDArray[np.float64]] = {}
    for name in ("request_s", "processors", "user", "group", "executable", "queue", "partition"):
        known = log[name].astype("float64")
        columns[name] = known.where(known > UNKNOWN).to_numpy()
    columns["hour"] = submit_s % DAY_S / 3600.0
    columns["weekday"] = (submit_s // DAY_S % 7).astype("float64")
    if history:
        columns.update({name: replay(log, name)[:, 0] for name in REPLAYED})
        columns.update(_counts(log))
    if learned:
        columns.update({name: replay(log, name)[:, 0] for name in LEARNED})
    frame: pd.DataFrame = pandas.DataFrame(columns, index=log.index)
    return frame


def _counts(log: pd.DataFrame) -> dict[str, NDArray[np.float64]]:
    """How many jobs each user has had, and when."""
    numpy = need("numpy", "jobs", "features")
    submit_s, ends_s = whole_numbers(log["submit_s"]), end_s(log)
    names = ("submitted", "ended", "in_system", "since_submit_s", "since_end_s")
    columns = {name: numpy.full(len(log), numpy.nan) for name in names}
    for places in log.groupby("user", sort=False).indices.values():
        at = submit_s[places]
        over = numpy.sort(ends_s[places])
        ended = numpy.searchsorted(over, at, side="right")
        before = numpy.arange(len(places))
        columns["submitted"][places] = before
        columns["ended"][places] = ended
        columns["in_system"][places] = before - ended
        columns["since_submit_s"][places[1:]] = numpy.diff(at)
        some = ended > 0
        columns["since_end_s"][places[some]] = at[some] - over[ended[some] - 1]
    return columns
