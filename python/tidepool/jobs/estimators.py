"""Estimators of run times as scikit-learn has them: `fit`, `predict`, parameters, clones.

Rows are jobs and columns features (`tidepool.jobs.features`), best as a data frame with their names. What is not known
is NaN. Rows have to be in the order of submission where that plays a role: for `OnlineRegressor` and `Conformal`.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from tidepool import _native
from tidepool.jobs._needs import need
from tidepool.jobs.log import KNOWN, UNKNOWN

for _module in ("numpy", "joblib", "sklearn.base"):
    need(_module, "jobs", "estimators")

import joblib
import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

LEVELS = (0.90, 0.95)
"""Shares of jobs that are over within the times that go with a prediction."""
JOBS_MIN = 20
"""Jobs of a user from which on it has a model of its own."""
FOREVER_S = 1 << 62
"""Starts then: never."""


class _Regressor(RegressorMixin, BaseEstimator):
    """What all here have in common: NaN is allowed."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _rows(self, X: Any, reset: bool) -> Any:
        """The features as an array, looked at as scikit-learn does."""
        if not reset:
            check_is_fitted(self)
        return validate_data(self, X, reset=reset, dtype="float64", ensure_all_finite="allow-nan")

    def _rows_and_runs(self, X: Any, y: Any, reset: bool = True) -> Any:
        return validate_data(self, X, y, reset=reset, dtype="float64", ensure_all_finite="allow-nan", y_numeric=True)

    def _column(self, named: str | int, count: int) -> int:
        """Where a feature is: by its name, or its number."""
        if isinstance(named, int):
            if not -count <= named < count:
                raise ValueError(f"there is no column {named}: X has {count} features")
            return named % count
        names = list(getattr(self, "feature_names_in_", ()))
        if named not in names:
            near = difflib.get_close_matches(named, names, 1)
            hint = f": did you mean {near[0]!r}?" if near else "; give a data frame that has it, or the column's number"
            raise ValueError(f"X has no column {named!r}{hint}")
        return names.index(named)


class OnlineRegressor(_Regressor):
    """One of the compiled predictors (`tidepool.jobs.PREDICTORS`).

    `fit` tells it jobs in the order of time, until all are over; `partial_fit` tells it of later ones. `predict` asks
    it about jobs that are submitted after those, in the order of their times, and of which none is over yet: who else
    is in the queue is known, too. Columns are those of `tidepool.jobs.KNOWN`, by their names, or without names by their
    order; others are not looked at. To judge predictors on a log, use `tidepool.jobs.replay`, where they learn on.
    """

    def __init__(self, predictor: str = "default") -> None:
        self.predictor = predictor

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # They look for jobs that are alike, and find none among numbers at random.
        tags.regressor_tags.poor_score = True
        return tags

    def fit(self, X: ArrayLike, y: ArrayLike, start_s: ArrayLike | None = None) -> OnlineRegressor:
        """Learns from jobs; without `start_s` each started when it was submitted."""
        rows, runs = self._rows_and_runs(X, y)
        self.marks_: dict[str, NDArray[np.float64]] = {}
        return self._told(_State(self.predictor), rows, runs, start_s)

    def partial_fit(self, X: ArrayLike, y: ArrayLike, start_s: ArrayLike | None = None) -> OnlineRegressor:
        """Learns from jobs that were submitted after all that it knows; those are not looked at again."""
        if not hasattr(self, "state_"):
            return self.fit(X, y, start_s)
        rows, runs = self._rows_and_runs(X, y, reset=False)
        return self._told(self.state_, rows, runs, start_s)

    def _told(self, state: _State, rows: Any, runs: Any, start_s: Any) -> OnlineRegressor:
        for name, at in self._places(rows).items():
            if name in _MARKS:
                learned = self.marks_.get(name, np.empty(0))
                # In the order in which they came: what has a number keeps it.
                self.marks_[name] = np.concatenate([learned, np.setdiff1d(rows[:, at], learned)])
        columns = self._columns(rows)
        columns["start_s"] = columns["submit_s"] if start_s is None else np.asarray(start_s).astype("<i8")
        columns["run_s"] = runs.astype("<f8")
        state.learn(_in_order(columns, _order(columns)))
        self.state_ = state
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Run times in seconds."""
        said: NDArray[np.float64] = self._said(X)[:, 0]
        return said

    def predict_within(self, X: ArrayLike) -> NDArray[np.float64]:
        """Times within which the shares `LEVELS` of such jobs are over: a column for each."""
        said: NDArray[np.float64] = self._said(X)[:, 1:]
        return said

    def _said(self, X: ArrayLike) -> NDArray[np.float64]:
        columns = self._columns(self._rows(X, reset=False))
        columns["start_s"] = np.full_like(columns["submit_s"], FOREVER_S)
        columns["run_s"] = np.zeros(len(columns["submit_s"]), dtype="<f8")
        order = _order(columns)
        said = np.frombuffer(self.state_.native.copied().replay(_in_order(columns, order), False), dtype="<f8")
        rows: NDArray[np.float64] = np.empty((len(order), 1 + len(LEVELS)))
        rows[order] = said.reshape(rows.shape)
        return rows

    def _places(self, rows: Any) -> dict[str, int]:
        """Which of the known columns there are, and where."""
        names = list(getattr(self, "feature_names_in_", ()))
        by_name = {name: names.index(name) for name in KNOWN if name in names}
        return by_name or {name: at for at, name in enumerate(KNOWN) if at < rows.shape[1]}

    def _columns(self, rows: Any) -> dict[str, Any]:
        columns = {name: np.full(len(rows), UNKNOWN, dtype="<i8") for name in KNOWN}
        for name, at in self._places(rows).items():
            known = ~(np.isnan(rows[:, at]) | (rows[:, at] == UNKNOWN))
            values = rows[known, at]
            if name in _MARKS:
                columns[name][known] = self._numbered(name, values)
            else:
                columns[name][known] = np.clip(np.round(values), 0, _MOST[name])
        columns["submit_s"] = columns["submit_s"].clip(min=0)
        return columns

    def _numbered(self, name: str, values: Any) -> Any:
        """What is equal gets the same number, here and when it was learned."""
        learned = self.marks_[name]
        new = np.setdiff1d(values, learned)
        order = np.argsort(learned)
        at = order[np.searchsorted(learned, values, sorter=order).clip(max=len(learned) - 1)]
        return np.where(learned[at] == values, at, len(learned) + np.searchsorted(new, values))


_MARKS = ("user", "group", "executable", "queue", "partition")
_MOST = {"submit_s": 1 << 36, "request_s": 1 << 36, "processors": 100_000_000}
"""Bounds of the logs' reader."""


def _order(columns: dict[str, Any]) -> Any:
    return np.argsort(columns["submit_s"], kind="stable")


def _in_order(columns: dict[str, Any], order: Any) -> dict[str, bytes]:
    return {name: column[order].tobytes() for name, column in columns.items()}


class _State:
    """What a compiled predictor knows; pickled as what it was told."""

    def __init__(self, predictor: str) -> None:
        self.native, self.predictor = _native.Predictor(predictor), predictor
        self.told: list[dict[str, bytes]] = []

    def learn(self, columns: dict[str, bytes]) -> None:
        """Jobs until all are over."""
        self.native.replay(columns, True)
        self.told.append(columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.predictor, self.told)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _State) and (self.predictor, self.told) == (other.predictor, other.told)

    def __hash__(self) -> int:
        return hash(self.predictor)


def _restored(predictor: str, told: list[dict[str, bytes]]) -> _State:
    state = _State(predictor)
    for columns in told:
        state.learn(columns)
    return state


class GradientBoosting(_Regressor):
    """LightGBM with the absolute error, or at a `level` between 0 and 1 with the loss of that quantile.

    The same seed and data give the same model, with whatever number of threads.
    """

    def __init__(
        self,
        level: float | None = None,
        trees: int = 200,
        leaves: int = 31,
        learning_rate: float = 0.05,
        leaf_jobs_min: int = 20,
        random_state: int | None = 0,
        n_jobs: int | None = 1,
    ) -> None:
        self.level = level
        self.trees = trees
        self.leaves = leaves
        self.learning_rate = learning_rate
        self.leaf_jobs_min = leaf_jobs_min
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(self, X: ArrayLike, y: ArrayLike) -> GradientBoosting:
        """Learns from jobs and their run times."""
        lightgbm = need("lightgbm", "jobs", "gradient boosting")
        rows, runs = self._rows_and_runs(X, y)
        seed = check_random_state(self.random_state).randint(1 << 30)
        loss = {"objective": "l1"} if self.level is None else {"objective": "quantile", "alpha": self.level}
        options = {
            **loss,
            "learning_rate": self.learning_rate,
            "num_leaves": self.leaves,
            # A model of a few jobs has a few leaves.
            "min_data_in_leaf": max(1, min(self.leaf_jobs_min, len(rows) // 4)),
            "num_threads": self.n_jobs or 1,
            "seed": seed,
            "deterministic": True,
            "force_row_wise": True,
            "verbosity": -1,
        }
        data = lightgbm.Dataset(rows, runs, params=options, free_raw_data=True)
        self.booster_ = lightgbm.train(options, data, num_boost_round=self.trees)
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Run times in seconds, or the quantile."""
        rows = self._rows(X, reset=False)
        said: NDArray[np.float64] = self.booster_.predict(rows, num_threads=self.n_jobs or 1)
        return said


class Residual(_Regressor):
    """Corrects predictions that stand in a column: `estimator` learns what they are wrong by.

    A model of all jobs on top of a predictor that learns after each one.
    """

    def __init__(self, estimator: Any, base: str | int = "expert") -> None:
        self.estimator = estimator
        self.base = base

    def fit(self, X: ArrayLike, y: ArrayLike) -> Residual:
        """Learns from jobs and their run times."""
        rows, runs = self._rows_and_runs(X, y)
        self.estimator_ = _trained(self.estimator, rows, runs - self._said(rows))
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Run times in seconds."""
        rows = self._rows(X, reset=False)
        said: NDArray[np.float64] = self._said(rows) + self.estimator_.predict(rows)
        return said

    def _said(self, rows: Any) -> Any:
        return np.nan_to_num(rows[:, self._column(self.base, rows.shape[1])])


class PerUser(_Regressor):
    """A model for each user with at least `jobs_min` jobs, and one for all others (INVENTORY B1; S0 section 4).

    `user` is the column that tells users apart, by name or number. `fallback` is the estimator for everybody else: it
    learns from all jobs; `None` is another `estimator`, and the name or number of a column means that what stands there
    is predicted. Users are trained at once, `n_jobs` at a time, as joblib has it: inside
    `joblib.parallel_backend("dask")` on a cluster.
    """

    def __init__(
        self,
        estimator: Any,
        user: str | int = "user",
        jobs_min: int = JOBS_MIN,
        fallback: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.user = user
        self.jobs_min = jobs_min
        self.fallback = fallback
        self.n_jobs = n_jobs

    def fit(self, X: ArrayLike, y: ArrayLike) -> PerUser:
        """Trains all models."""
        rows, runs = self._rows_and_runs(X, y)
        users = rows[:, self._column(self.user, rows.shape[1])]
        numbers, counts = np.unique(users[~np.isnan(users)], return_counts=True)
        own = numbers[counts >= self.jobs_min]
        work = [(self.estimator, rows[users == number], runs[users == number]) for number in own]
        if self._fallback_column(rows.shape[1]) is None:
            work.append((self.estimator if self.fallback is None else self.fallback, rows, runs))
        trained = joblib.Parallel(n_jobs=self.n_jobs)(joblib.delayed(_trained)(*one) for one in work)
        self.models_ = dict(zip(own.tolist(), trained))
        self.for_others_ = trained[len(own)] if len(trained) > len(own) else None
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Run times, of each user by its own model if there is one."""
        rows = self._rows(X, reset=False)
        users = rows[:, self._column(self.user, rows.shape[1])]
        said: NDArray[np.float64] = np.empty(len(rows))
        others = np.ones(len(rows), dtype=bool)
        for number in np.unique(users[~np.isnan(users)]):
            model = self.models_.get(float(number))
            if model is not None:
                mine = users == number
                said[mine] = model.predict(rows[mine])
                others &= ~mine
        if others.any():
            column = self._fallback_column(rows.shape[1])
            if column is not None:
                said[others] = rows[others, column]
            else:
                assert self.for_others_ is not None
                said[others] = self.for_others_.predict(rows[others])
        return said

    def _fallback_column(self, count: int) -> int | None:
        return self._column(self.fallback, count) if isinstance(self.fallback, (str, int)) else None


def _trained(estimator: Any, rows: Any, runs: Any) -> Any:
    return clone(estimator).fit(rows, runs)


class Conformal(_Regressor):
    """Adds times within which the shares `levels` of jobs are over to an estimator (split conformal prediction).

    The estimator learns from the first jobs and errors are taken from the last `share` of them. The promise holds for
    jobs that come from where those came from: on logs, which change, too few are covered, and
    `tidepool.jobs.calibrated`, which goes on learning, does better.
    """

    def __init__(
        self,
        estimator: Any,
        levels: tuple[float, ...] = LEVELS,
        share: float = 0.25,
    ) -> None:
        self.estimator = estimator
        self.levels = levels
        self.share = share

    def fit(self, X: ArrayLike, y: ArrayLike) -> Conformal:
        """Learns from jobs in the order of their submission."""
        rows, runs = self._rows_and_runs(X, y)
        cut = max(1, min(len(rows) - 1, round(len(rows) * (1 - self.share))))
        self.estimator_ = _trained(self.estimator, rows[:cut], runs[:cut])
        last = slice(cut, None) if len(rows) > 1 else slice(None)
        self.errors_ = np.sort(runs[last] - self.estimator_.predict(rows[last]))
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Run times, as the estimator says them."""
        rows = self._rows(X, reset=False)
        said: NDArray[np.float64] = self.estimator_.predict(rows)
        return said

    def predict_within(self, X: ArrayLike) -> NDArray[np.float64]:
        """A column for each of `levels`."""
        said = self.predict(X)
        count = len(self.errors_)
        ranks = [min(count, int(np.ceil(level * (count + 1)))) for level in self.levels]
        within: NDArray[np.float64] = said[:, None] + self.errors_[[rank - 1 for rank in ranks]][None, :]
        return within
