"""Judges predictors of run times on logs: `python -m tidepool.jobs.evaluate LOG --out DIR`.

For each log, every compiled predictor and batch learners as the protocol says (`tidepool.jobs.protocol`); what comes
out are tables, `evaluation.json`, `summary.csv`, `users.csv`, and the papers' figures with their numbers beside, in one
page, `index.html`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tidepool.jobs import log as logs
from tidepool.jobs._needs import MissingError, need
from tidepool.jobs.online import PREDICTORS, calibrated, replay

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd

    from tidepool.jobs.methods import Method, Options
    from tidepool.jobs.protocol import Measures, OfUser, Split

BATCH = ("lgbm", "lgbm-user", "linear-batch")
"""Batch learners that are judged when nobody says which."""
LEAKS = "leaks the future: only to reproduce the papers"
TRAININGS = 10


class UsageError(ValueError):
    """Something that cannot be asked for."""


@dataclass
class Row:
    """One predictor on one log."""

    name: str
    about: str
    learns: str
    """When."""
    measures: Measures
    users: list[OfUser]
    within: bool
    """Whether it says times that jobs are over within."""
    seconds: float
    """That training and predicting took."""


@dataclass
class Evaluation:
    """All predictors on one log."""

    path: Path
    repairs: dict[str, int]
    jobs: int
    split: Split
    rows: list[Row] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The log's, for tables."""
        return self.path.name.removesuffix(".gz").removesuffix(".swf")


def evaluate(
    path: str | os.PathLike[str],
    *,
    predictors: Sequence[str] = (),
    split: str = "temporal",
    warm_up: float = 0.5,
    trainings: int = TRAININGS,
    jobs: int | None = None,
    options: Options | None = None,
) -> Evaluation:
    """Judges predictors on a log; without names all compiled ones and `BATCH`."""
    from tidepool.jobs import protocol
    from tidepool.jobs.features import LEARNED, features
    from tidepool.jobs.methods import METHODS
    from tidepool.jobs.methods import Options as Defaults

    options = options or Defaults()
    names = _names(predictors, split, METHODS)
    log = logs.read(path, jobs)
    if split == "temporal":
        parts = protocol.temporal(log, warm_up, trainings)
        once = protocol.temporal(log, warm_up, 1)
    else:
        parts = once = protocol.random(log, warm_up, options.seed)
    result = Evaluation(Path(path), log.attrs["repairs"], len(log), parts)
    batch = [METHODS[name] for name in names if name in METHODS]
    learned = any(name in method.told for method in batch for name in LEARNED)
    rows = features(log, learned=learned) if batch else None
    for name in names:
        if name in PREDICTORS:
            result.rows.append(_compiled(name, log, parts))
        else:
            assert rows is not None
            method = METHODS[name]
            result.rows.append(_batch(method, rows, log, once if method.once else parts, options))
    return result


def _names(wanted: Sequence[str], split: str, batch: dict[str, Method]) -> list[str]:
    # Those that learn on know no split: the request alone says the same under both.
    online = list(PREDICTORS) if split == "temporal" else ["request"]
    names = list(wanted) or [*online, *BATCH]
    for name in names:
        if name not in PREDICTORS and name not in batch:
            raise UsageError(f"'{name}' is no predictor; there are {', '.join([*PREDICTORS, *batch])}")
        if name in PREDICTORS and name not in online:
            raise UsageError(f"'{name}' learns job by job in the order of time: it cannot be judged on a random split")
    return names


def _compiled(name: str, log: pd.DataFrame, split: Split) -> Row:
    from tidepool.jobs import protocol

    begun = time.perf_counter()
    said = replay(log, name)
    took = time.perf_counter() - begun
    measures = protocol.measured(log, split.judged, said)
    users = protocol.of_users(log, split, said[:, 0])
    return Row(name, PREDICTORS[name], "after each job", measures, users, split.kind == "temporal", took)


def _batch(method: Method, rows: pd.DataFrame, log: pd.DataFrame, split: Split, options: Options) -> Row:
    from tidepool.jobs import protocol

    numpy = need("numpy", "jobs", "judging predictors")
    begun = time.perf_counter()
    estimator, told = method.make(options), method.columns(rows)
    points = protocol.predicted(estimator, told, log, split)
    said = numpy.full((len(log), 3), numpy.nan)
    said[:, 0] = points.judged_s
    if split.kind == "temporal":
        judged = log.iloc[split.judged]
        # From the errors on judged jobs that are over: what was trained on says nothing of errors.
        said[split.judged] = calibrated(judged, points.judged_s[split.judged])
        for at, level in enumerate(method.levels):
            quantile = estimator.__class__(**{**estimator.get_params(), "level": level})
            own = protocol.predicted(quantile, told, log, split).judged_s[split.judged]
            # A quantile that was learned is moved by its own errors, so that it holds (Romano et al. 2019).
            moved = calibrated(judged, own)[:, 1 + at]
            said[split.judged, 1 + at] = numpy.maximum(moved, said[split.judged, at])
    else:
        said[:, 1:] = said[:, :1]
    took = time.perf_counter() - begun
    # R2 on what a model learned from is of models of users.
    taught = points.taught_s if method.per_user else None
    users = protocol.of_users(log, split, points.judged_s, taught, options.jobs_min)
    count = len(split.blocks)
    learns = "at the split" if count == 1 else f"{count} times"
    return Row(
        method.name,
        method.about,
        learns,
        protocol.measured(log, split.judged, said),
        users,
        split.kind == "temporal",
        took,
    )


@contextlib.contextmanager
def cluster(address: str | None) -> Iterator[None]:
    """Models of users are trained by the workers of a Dask cluster meanwhile, if there is one."""
    if address is None:
        yield
        return
    distributed = need("distributed", "cluster", "training on a Dask cluster")
    joblib = need("joblib", "jobs", "training")
    with distributed.Client(address), joblib.parallel_config(backend="dask"):
        yield


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tidepool.jobs.evaluate",
        description="Judges predictors of run times on logs of batch systems: SWF, sacct, CSV, Parquet, packed or not.",
    )
    parser.add_argument("logs", nargs="+", type=Path, metavar="LOG")
    parser.add_argument("--out", type=Path, metavar="DIR", help="writes tables, figures and a page there")
    parser.add_argument(
        "--predictor", action="append", default=[], metavar="NAME", help=f"one of them (default all and {BATCH})"
    )
    parser.add_argument("--add", action="append", default=[], metavar="NAME", help="one more, as automl")
    parser.add_argument("--split", choices=("temporal", "random"), default="temporal", help=f"random {LEAKS}")
    parser.add_argument(
        "--warm-up", type=float, default=0.5, metavar="SHARE", help="jobs that teach only (default %(default)s)"
    )
    parser.add_argument(
        "--trainings", type=int, default=TRAININGS, metavar="N", help="of batch learners (default %(default)s)"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="the first jobs of each log only")
    parser.add_argument(
        "--jobs-min", type=int, default=20, metavar="N", help="that give a user a model (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="(default %(default)s)")
    parser.add_argument("--automl-seconds", type=float, metavar="S", help="budget of each user's search")
    parser.add_argument(
        "--automl-iterations", type=int, metavar="N", help="the same in models tried (default 20 without seconds)"
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes that train (default: a core each, here or there)"
    )
    parser.add_argument("--dask", metavar="ADDRESS", help="of the scheduler of a Dask cluster, which then trains")
    parser.add_argument("--json", action="store_true", help="prints JSON and no tables")
    return parser


def _options(args: argparse.Namespace) -> Options:
    from tidepool.jobs.methods import Options

    iterations = args.automl_iterations
    if iterations is None and args.automl_seconds is None:
        iterations = 20
    cores = len(os.sched_getaffinity(0))
    return Options(
        seed=args.seed,
        jobs_min=args.jobs_min,
        workers=args.workers or (-1 if args.dask else cores),
        threads=args.workers or cores,
        automl_seconds=args.automl_seconds,
        automl_iterations=iterations,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. 0 when done, 1 when a log cannot be judged, 2 for wrong usage."""
    args = _arguments().parse_args(arguments)
    try:
        from tidepool.jobs import protocol, report

        online = list(PREDICTORS) if args.split == "temporal" else ["request"]
        names = args.predictor or ([*online, *BATCH] if args.add else [])
        options = _options(args)
        with cluster(args.dask):
            all_ = [
                evaluate(
                    path,
                    predictors=[*names, *args.add],
                    split=args.split,
                    warm_up=args.warm_up,
                    trainings=args.trainings,
                    jobs=args.jobs,
                    options=options,
                )
                for path in args.logs
            ]
        value = report.value(all_, options)
        print(json.dumps(value) if args.json else report.text(all_))
        if args.out:
            report.write(args.out, all_, value)
    except UsageError as error:
        print(f"evaluate: {error}", file=sys.stderr)
        return 2
    except (logs.LogError, protocol.ProtocolError, MissingError, OSError) as error:
        print(f"evaluate: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
