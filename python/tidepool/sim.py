"""The storage simulator: experiments in virtual time, and what comes out as data frames.

    from tidepool import sim

    result = sim.run("fig7.toml", layout={"stripe": "64KiB"}, servers={"ssd": {"weight": 3}})
    print(result.summary["bytes_per_second"])
    print(result.requests.groupby("op").latency_ns.quantile([0.5, 0.99]))

The work is done by the program `tidepool` (`tidepool sim run`, `sweep`, `tune`), in processes of its own: it is looked
for in `program`, in the variable `TIDEPOOL_PROGRAM`, and in `PATH`. Data frames need pandas (`pip install
'tidepool[sim]'`); everything else does without.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from tidepool.errors import TidepoolError

if TYPE_CHECKING:
    from types import ModuleType

    import pandas as pd

__all__ = ["Result", "SimulationError", "Sweep", "Tuning", "run", "sweep", "tune"]

PROGRAM_VARIABLE = "TIDEPOOL_PROGRAM"

Experiment = Union[str, "os.PathLike[str]", Mapping[str, Any]]
"""The path of a file, TOML text (of several lines), or the file as a dictionary (docs/formats/28-experiments.md)."""
Values = Union[str, int, Iterable[Union[str, int]]]
"""Values of a knob: `"1..4"`, `3`, or `["16KiB", "64KiB"]`."""


class SimulationError(TidepoolError):
    """The simulator refused, or could not do it; `code` is the program's exit code, 0 if it was not even started."""

    def __init__(self, detail: str, code: int = 0) -> None:
        super().__init__(code, 0, detail)


def _pandas() -> ModuleType:
    try:
        import pandas
    except ImportError as error:
        raise SimulationError(
            "data frames need pandas: pip install 'tidepool[sim]'; without it there are .summary and the files in .dir"
        ) from error
    module: ModuleType = pandas
    return module


class _Scratch:
    """A directory that goes away with this object."""

    def __init__(self) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="tidepool-sim-"))
        weakref.finalize(self, shutil.rmtree, self.dir, ignore_errors=True)


@dataclass
class Result:
    """What a run came to."""

    summary: dict[str, Any]
    """Requests, bytes, latencies with quantiles and histograms, servers, activity over time: `result` of `--json`."""
    run: dict[str, Any]
    """What the run took: events, seconds of processor time, memory, and the trace that tells equal runs."""
    dir: Path
    """Where `requests.csv` is, and `sub-requests.csv` if it was asked for. It goes away with this object."""
    _keep: _Scratch | None = field(repr=False, default=None)
    _frames: dict[str, Any] = field(repr=False, default_factory=dict)

    def _frame(self, name: str) -> pd.DataFrame:
        if name not in self._frames:
            path = self.dir / f"{name}.csv"
            if not path.exists():
                raise SimulationError(f"there is no {path.name}: say {name.replace('-', '_')}=True to run()")
            # Names as "NA" and "null" are names.
            self._frames[name] = _pandas().read_csv(
                path, keep_default_na=False, na_values={"rank": [""], "number": [""]}
            )
        return self._frames[name]

    @property
    def requests(self) -> pd.DataFrame:
        """A row for each request, in the order of their ends, with `latency_ns`."""
        frame = self._frame("requests")
        if "latency_ns" not in frame:
            frame["latency_ns"] = frame["end_ns"] - frame["begin_ns"]
        return frame

    @property
    def sub_requests(self) -> pd.DataFrame:
        """A row for each stripe of a request at a server; needs `sub_requests=True`."""
        return self._frame("sub-requests")

    @property
    def servers(self) -> pd.DataFrame:
        """A row for each server."""
        return _pandas().DataFrame(self.summary["servers"])

    @property
    def nodes(self) -> pd.DataFrame:
        """A row for each compute node, with what its cache did; none where ranks share no nodes."""
        rows = [{**node, **(node["cache"] or {})} for node in self.summary["nodes"]]
        return _pandas().DataFrame(rows).drop(columns="cache", errors="ignore")

    @property
    def latency(self) -> pd.DataFrame:
        """A row for each workload and operation: count, mean, and quantiles."""
        rows = [{key: value for key, value in row.items() if key != "histogram"} for row in self.summary["latency"]]
        return _pandas().DataFrame(rows)

    @property
    def over_time(self) -> pd.DataFrame:
        """A row for each class of servers and stretch of time: how busy, how many waited, which bytes."""
        pandas = _pandas()
        over = self.summary["over_time"]
        starts = [at * over["bin_ns"] for at in range(over["bins"])]
        frames = [pandas.DataFrame({"begin_ns": starts, **classes}) for classes in over["classes"]]
        return pandas.concat(frames, ignore_index=True)


@dataclass
class Sweep:
    """What a sweep came to."""

    rows: list[dict[str, str]]
    """Lines of `points.csv`: number, knobs, seed, and results of each point, as text."""
    dir: Path
    """Where `points.csv`, `sweep.html` and the points are. Without `out` it goes away with this object."""
    _keep: _Scratch | None = field(repr=False, default=None)

    @property
    def points(self) -> pd.DataFrame:
        """A row for each point; what is no possible configuration has no results."""
        return _pandas().read_csv(self.dir / "points.csv", dtype={"trace": "string"})


@dataclass
class Tuning:
    """What a search came to: configurations with their knobs, throughput, response time and price."""

    best: dict[str, Any]
    frontier: list[dict[str, Any]]
    """Those than which none is faster for the same price."""
    tried: list[dict[str, Any]]

    @property
    def trials(self) -> pd.DataFrame:
        """A row for each configuration that was tried."""
        rows = [{**trial["knobs"], **{k: v for k, v in trial.items() if k != "knobs"}} for trial in self.tried]
        return _pandas().DataFrame(rows)


def run(
    experiment: Experiment,
    *,
    seed: int | None = None,
    scheduler: str | None = None,
    threads: int | None = None,
    sub_requests: bool = False,
    program: str | os.PathLike[str] | None = None,
    **overrides: object,
) -> Result:
    """Simulates an experiment to its end.

    `overrides` replace parts of it: tables by their keys, `device`, `servers` and `workload` by names, as
    `server={"threads": 4}, workload={"checkpoint": {"ranks": 32}}`.
    """
    scratch = _Scratch()
    dir = scratch.dir
    words = ["run", _file(experiment, overrides, dir), "--json", "--csv", dir / "requests.csv"]
    if sub_requests:
        words += ["--sub-requests", dir / "sub-requests.csv"]
    words += _options({"seed": seed, "scheduler": scheduler, "threads": threads})
    told = json.loads(_tell(program, words))
    return Result(told["result"], told["run"], dir, scratch)


def sweep(
    experiment: Experiment,
    vary: Mapping[str, Values],
    *,
    seeds: int = 1,
    seed: int | None = None,
    jobs: int | None = None,
    out: str | os.PathLike[str] | None = None,
    program: str | os.PathLike[str] | None = None,
    **overrides: object,
) -> Sweep:
    """Simulates all configurations of some knobs, several at once: `sweep("fig7.toml", {"weight.ssd": "1..6"})`.

    With `out`, a sweep that was stopped goes on where it was.
    """
    with tempfile.TemporaryDirectory(prefix="tidepool-sim-") as scratch:
        kept = _Scratch() if out is None else None
        dir = kept.dir if kept else Path(out or ".")
        words = ["sweep", _file(experiment, overrides, Path(scratch)), *_knobs(vary), "--out", dir]
        words += _options({"seeds": seeds, "seed": seed, "jobs": jobs})
        _tell(program, words)
    with open(dir / "points.csv", newline="") as lines:
        return Sweep(list(csv.DictReader(lines)), dir, kept)


def tune(
    experiment: Experiment,
    vary: Mapping[str, Values],
    *,
    goal: str = "throughput",
    cost: Mapping[str, float] | None = None,
    trials: int | None = None,
    seed: int | None = None,
    program: str | os.PathLike[str] | None = None,
    **overrides: object,
) -> Tuning:
    """Searches for the configuration that does best: `goal` is throughput, response or per-price."""
    with tempfile.TemporaryDirectory(prefix="tidepool-sim-") as scratch:
        words = ["tune", _file(experiment, overrides, Path(scratch)), *_knobs(vary), "--json", "--goal", goal]
        if cost:
            words += ["--cost", ",".join(f"{name}={price}" for name, price in cost.items())]
        words += _options({"trials": trials, "seed": seed})
        told = json.loads(_tell(program, words))
    return Tuning(told["best"], told["frontier"], told["tried"])


def _knobs(vary: Mapping[str, Values]) -> list[str]:
    words = []
    for name, values in vary.items():
        listed = [values] if isinstance(values, (str, int)) else values
        words += ["--vary", f"{name}={','.join(str(value) for value in listed)}"]
    return words


def _options(options: Mapping[str, object]) -> list[str]:
    given = ((f"--{name}", str(value)) for name, value in options.items() if value is not None)
    return [word for pair in given for word in pair]


def _tell(program: str | os.PathLike[str] | None, words: list[Any]) -> str:
    """Runs the program; what it printed."""
    path = program or os.environ.get(PROGRAM_VARIABLE) or shutil.which("tidepool")
    if not path:
        raise SimulationError(f"there is no program 'tidepool' in PATH; say program=PATH or set {PROGRAM_VARIABLE}")
    command = [os.fspath(path), "sim", *(os.fspath(word) for word in words)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise SimulationError(f"{os.fspath(path)}: {error.strerror}") from error
    if done.returncode != 0:
        raise SimulationError(done.stderr.strip() or f"tidepool ended with {done.returncode}", done.returncode)
    return done.stdout


def _file(experiment: Experiment, overrides: Mapping[str, object], scratch: Path) -> Path:
    """The experiment as a file: as it is, or written to `scratch`."""
    if isinstance(experiment, Mapping):
        table, beside = dict(experiment), Path.cwd()
    elif isinstance(experiment, str) and "\n" in experiment:
        if not overrides:
            return _written(scratch, experiment)
        table, beside = _parsed(experiment, "the text"), Path.cwd()
    else:
        path = Path(experiment)
        if not overrides:
            return path
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise SimulationError(f"{path}: {error.strerror}", 2) from error
        table, beside = _parsed(text, str(path)), path.resolve().parent
    table.update({key: _override(table.get(key), value, key) for key, value in overrides.items()})
    workloads = table.get("workload")
    if isinstance(workloads, list):
        table["workload"] = [_found(workload, beside) for workload in workloads]
    return _written(scratch, _toml(table))


def _found(workload: object, beside: Path) -> object:
    """What a file names lies beside it, and the file that is written lies elsewhere."""
    if isinstance(workload, Mapping) and isinstance(workload.get("path"), str):
        return {**workload, "path": str(beside / workload["path"])}
    return workload


def _override(base: object, value: object, key: str) -> object:
    if not isinstance(value, Mapping) or base is None:
        return value
    if isinstance(base, Mapping):
        return {**base, **value}
    if not isinstance(base, list):
        return value
    unknown = set(value) - {table.get("name") for table in base}
    if unknown:
        raise SimulationError(f"there is no {key} with the name {', '.join(sorted(map(repr, unknown)))}", 2)
    return [{**table, **value.get(table.get("name"), {})} for table in base]


def _parsed(text: str, what: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib

        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise SimulationError(f"{what}: {error}", 2) from error
    raise SimulationError(f"to change parts of {what} takes Python 3.11; give a dictionary instead")


def _written(scratch: Path, text: str) -> Path:
    path = scratch / "experiment.toml"
    path.write_text(text, encoding="utf-8")
    return path


def _toml(table: Mapping[str, Any]) -> str:
    """A dictionary as TOML, nested tables in line."""
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in table.items() if value is not None)


def _key(key: object) -> str:
    return _value(str(key))


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (str, os.PathLike)):
        # Strings of JSON are strings of TOML, but for one character that JSON leaves as it is.
        return json.dumps(os.fspath(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        pairs = (f"{_key(key)} = {_value(inner)}" for key, inner in value.items() if inner is not None)
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, Iterable):
        return "[" + ", ".join(_value(inner) for inner in value) + "]"
    raise SimulationError(f"{value!r} has no place in an experiment", 2)
