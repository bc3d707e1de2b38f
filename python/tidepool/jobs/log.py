"""Logs of batch systems as data frames, a row for each job that ran, in the order of submission."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tidepool import _native
from tidepool.jobs._needs import need

if TYPE_CHECKING:
    import os

    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

KNOWN = ("submit_s", "request_s", "processors", "user", "group", "executable", "queue", "partition")
"""What is known of a job when it is submitted. Times are seconds; -1 is what the log does not say."""
AFTERWARDS = ("wait_s", "run_s", "given_processors")
"""What is known later."""
UNKNOWN = -1


class LogError(ValueError):
    """What cannot be read as a log, with what to do about it."""


def read(path: str | os.PathLike[str], jobs: int | None = None) -> pd.DataFrame:
    """Reads a log in any format that `tidepool jobs` reads, packed or not, to its end or to so many jobs that ran.

    That is the Standard Workload Format, what `sacct` writes, CSV, Parquet (docs/formats/32-job-logs.md).

    Columns are `number`, `KNOWN`, `AFTERWARDS`, and `start_s` (of a job whose wait is not said, its submission).
    Faults are repaired as `tidepool jobs` does; `.attrs["repairs"]` says how often which.
    """
    pandas = need("pandas", "jobs", "logs as data frames")
    try:
        columns = _native.read_log(Path(path).read_bytes(), jobs)
    except OSError as error:
        raise LogError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise LogError(f"{path}: {error}") from error
    repairs = dict(columns.pop("repairs"))
    processors = columns.pop("machine_processors")
    numpy = need("numpy", "jobs", "logs as data frames")
    frame: pd.DataFrame = pandas.DataFrame(
        {name: numpy.frombuffer(column, dtype="<i8").astype("int64") for name, column in columns.items()}
    )
    frame["start_s"] = frame["submit_s"] + frame["wait_s"].clip(lower=0)
    frame.attrs = {"repairs": repairs, "processors": processors}
    return frame


def packed(log: pd.DataFrame) -> dict[str, bytes]:
    """The columns of a log as the compiled half takes them."""
    columns = {name: whole_numbers(log[name]).tobytes() for name in (*KNOWN, "start_s")}
    return {**columns, "run_s": log["run_s"].to_numpy().astype("<f8").tobytes()}


def whole_numbers(column: pd.Series) -> NDArray[np.int64]:
    """Of a column, with what is not known as -1."""
    numbers: NDArray[np.int64] = column.fillna(UNKNOWN).to_numpy().astype("<i8")
    return numbers


def end_s(log: pd.DataFrame) -> NDArray[np.int64]:
    """When each job was over: from then on it has taught."""
    numpy = need("numpy", "jobs", "logs as data frames")
    ends: NDArray[np.int64] = whole_numbers(log["start_s"]) + numpy.ceil(log["run_s"].to_numpy()).astype("int64")
    return ends
