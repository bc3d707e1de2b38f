"""Batch learners that `tidepool.jobs.evaluate` knows, beside the compiled predictors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidepool.jobs._needs import need
from tidepool.jobs.estimators import GradientBoosting, PerUser, Residual
from tidepool.jobs.features import FEATURES, LEARNED, METADATA

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd


@dataclass(frozen=True)
class Options:
    """What learners are made with."""

    seed: int = 1
    jobs_min: int = 20
    """Jobs of a user from which on it has a model of its own."""
    workers: int = 1
    """Models of users that are trained at once; -1 is as many as a cluster takes."""
    threads: int = 1
    """Of a model of all users."""
    automl_seconds: float | None = None
    automl_iterations: int | None = 20


@dataclass(frozen=True)
class Method:
    """A way to learn from batches of jobs."""

    name: str
    about: str
    told: tuple[str, ...]
    """Features."""
    once: bool
    """Trained once only, because that takes long."""
    per_user: bool
    make: Callable[[Options], Any]
    levels: tuple[float, ...] = ()
    """Quantiles that it learns, which errors then move; without, they are its predictions and errors."""

    def columns(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Those features that it is told."""
        return rows[list(self.told)]


def line() -> Any:
    """The papers' "default linear regression", without any choice made."""
    linear = need("sklearn.linear_model", "jobs", "linear regression")
    pipeline = need("sklearn.pipeline", "jobs", "linear regression")
    impute = need("sklearn.impute", "jobs", "linear regression")
    unknown = impute.SimpleImputer(strategy="constant", fill_value=-1.0, keep_empty_features=True)
    return pipeline.make_pipeline(unknown, linear.LinearRegression())


def _boosting(options: Options) -> Any:
    return GradientBoosting(random_state=options.seed, n_jobs=options.threads)


def _each(options: Options, estimator: Any, fallback: Any = None) -> PerUser:
    return PerUser(estimator, jobs_min=options.jobs_min, fallback=fallback, n_jobs=options.workers)


def _boosting_each(options: Options) -> Any:
    return _each(options, GradientBoosting(random_state=options.seed))


def _line_each(options: Options) -> Any:
    return _each(options, line())


def _automl_each(options: Options) -> Any:
    from tidepool.jobs.automl import AutoML

    need("flaml.automl.automl", "automl", "AutoML")
    one = AutoML(options.automl_seconds, options.automl_iterations, random_state=options.seed)
    # For users with few jobs: a model of all, which takes no search.
    return _each(options, one, GradientBoosting(random_state=options.seed))


def _correcting(options: Options) -> Any:
    return Residual(_boosting(options), "expert")


_PLAIN, _HISTORY, _ALL = tuple(METADATA), tuple(FEATURES), (*FEATURES, *LEARNED)
METHODS = {
    method.name: method
    for method in (
        Method("lgbm", "gradient boosting, all users together", _HISTORY, False, False, _boosting),
        Method("lgbm-quantiles", "the same, with quantiles learned", _HISTORY, False, False, _boosting, (0.9, 0.95)),
        Method("lgbm-expert", "gradient boosting that corrects 'expert'", _ALL, False, False, _correcting),
        Method("lgbm-user", "gradient boosting for each user", _HISTORY, False, True, _boosting_each),
        Method("linear-batch", "linear regression for each user, metadata only", _PLAIN, False, True, _line_each),
        Method("automl", "AutoML for each user, metadata only", _PLAIN, True, True, _automl_each),
        Method("automl-history", "AutoML for each user, with history", _HISTORY, True, True, _automl_each),
    )
}
