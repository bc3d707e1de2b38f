"""A log's jobs on a simulated batch scheduler: what `tidepool jobs simulate` does, of data frames."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tidepool import _native
from tidepool.jobs._needs import need
from tidepool.jobs.log import KNOWN, whole_numbers

if TYPE_CHECKING:
    import pandas as pd


def simulate(
    log: pd.DataFrame,
    *,
    policy: str = "conservative",
    estimate: str = "request",
    backfill: str = "queue",
    order: str = "submission",
    patience_s: int | None = None,
    correction: str | None = None,
    allocation: str | None = None,
    machine: str | os.PathLike[str] | None = None,
    nodes: int | None = None,
    per_node: int | None = None,
    kill: bool = True,
) -> pd.DataFrame:
    """Runs the jobs of a log, as `read` gives it, and says when each starts.

    `policy` is "fcfs", "easy" or "conservative"; `estimate`, `backfill`, `order`, `correction` and `allocation` are in
    the words of the options of `tidepool jobs simulate`, and `patience_s` is its `--patience`; `machine` is a file of
    format 31, `nodes` and `per_node` say what is not in it (without, each of the log's `.attrs["processors"]` is a
    node). With `kill`, jobs are ended at their request.

    The frame has a row for each job that fits on the machine, in the log's index: `submit_s`, `start_s`, `end_s`,
    `wait_s`, `run_s`, `estimate_s`, `corrections`, `nodes`, and `known_ahead_s`, which is how long before its start its
    nodes were known (T_NAP; -1 where nodes are not told from each other). `.attrs["measures"]` has waits, bounded
    slowdown and utilisation, `.attrs["too_large"]` how many jobs were left out. A `ValueError` says what cannot be
    simulated.
    """
    numpy = need("numpy", "jobs", "simulating logs")
    pandas = need("pandas", "jobs", "simulating logs")
    columns = {name: whole_numbers(log[name]).tobytes() for name in KNOWN}
    # What runs for a part of a second runs for one.
    columns["run_s"] = numpy.ceil(log["run_s"].to_numpy().astype("float64")).astype("<i8").tobytes()
    given = "given_processors" if "given_processors" in log else "processors"
    columns["given_processors"] = whole_numbers(log[given]).tobytes()
    asked: dict[str, object] = {
        "policy": policy,
        "estimate": estimate,
        "backfill": backfill,
        "order": order,
        "patience_s": patience_s,
        "correction": correction,
        "allocation": allocation,
        "machine": None if machine is None else Path(machine).read_text(encoding="utf-8"),
        "nodes": nodes,
        "per_node": per_node,
        "machine_processors": log.attrs.get("processors"),
        "kills": kill,
    }
    told = _native.simulate(columns, asked)
    measures, too_large = dict(told.pop("measures")), told.pop("too_large")
    ran = {name: numpy.frombuffer(column, dtype="<i8").astype("int64") for name, column in told.items()}
    place = ran.pop("place")
    submits = whole_numbers(log["submit_s"])[place]
    frame: pd.DataFrame = pandas.DataFrame({"submit_s": submits, **ran}, index=log.index[place])
    frame.insert(3, "wait_s", frame["start_s"] - frame["submit_s"])
    frame.insert(4, "run_s", frame["end_s"] - frame["start_s"])
    frame.attrs = {"measures": measures, "too_large": too_large}
    return frame
