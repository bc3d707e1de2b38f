"""Estimators of `tidepool.jobs`: as scikit-learn wants them, and as their documentation says."""

from __future__ import annotations

import pickle
import time
from typing import TYPE_CHECKING, Any

import pytest

import jobs_log
from tidepool import jobs

if TYPE_CHECKING:
    from pathlib import Path

sklearn = pytest.importorskip("sklearn")
pytest.importorskip("lightgbm")

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.linear_model import LinearRegression
from sklearn.utils.estimator_checks import check_estimator

from tidepool.jobs.automl import AutoML
from tidepool.jobs.estimators import Conformal, GradientBoosting, OnlineRegressor, PerUser, Residual
from tidepool.jobs.features import features
from tidepool.jobs.methods import line


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return jobs.read(jobs_log.write(tmp_path_factory.mktemp("jobs") / "made-up.swf", jobs_log.lines(600)))


@pytest.mark.parametrize(
    "estimator",
    [
        OnlineRegressor("last-two"),
        OnlineRegressor("default"),
        GradientBoosting(trees=100),
        PerUser(line(), user=0),
        Conformal(line()),
        Residual(line(), base=0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_scikit_learns_checks(estimator: Any) -> None:
    results = check_estimator(estimator, on_skip=None)
    # Arrays that are not numpy's are for estimators that compute with whatever they are given; these are compiled.
    assert {one["check_name"] for one in results if one["status"] != "passed"} <= {"check_array_api_input"}
    assert len(results) > 40


def test_scikit_learns_checks_of_automl() -> None:
    pytest.importorskip("flaml.automl.automl", reason="tidepool[automl] is not installed", exc_type=ImportError)
    test_scikit_learns_checks(AutoML(iterations=5, learners=("lgbm",)))


def test_the_compiled_predictors_go_on_from_what_they_were_taught(log: Any) -> None:
    # All of the first 400 are over before the others are submitted.
    later = log.iloc[400:].copy()
    shift = int((log["start_s"] + log["run_s"]).max())
    later[["submit_s", "start_s"]] += shift
    first = log.iloc[:400]
    model = OnlineRegressor("same").fit(first, first["run_s"], start_s=first["start_s"])
    joined = first.copy()
    one = later.iloc[[0]]
    import pandas

    wanted = jobs.replay(pandas.concat([joined, one]), "same")[-1]
    assert model.predict(one) == [wanted[0]]
    assert model.predict_within(one)[0].tolist() == wanted[1:].tolist()
    # Asking teaches nothing, and copies say the same.
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(model.predict(later), model.predict(later))
    assert np.array_equal(model.predict_within(later), again.predict_within(later))
    with pytest.raises(ValueError, match="'lats' is no predictor"):
        OnlineRegressor("lats").fit(first, first["run_s"])


@pytest.mark.parametrize("predictor", ["default", "expert", "same"])
def test_what_is_told_in_parts_is_learned_as_at_once(log: Any, predictor: str) -> None:
    # Each job is over before the next one is submitted, and later parts have users that were not there before.
    gaps = log["submit_s"].diff().shift(-1).fillna(600).clip(lower=0)
    runs = np.minimum(log["run_s"], gaps)
    jobs_ = log.assign(user=1000 - log["user"] - 10 * (log.index // 200))
    later = jobs_.iloc[-50:].assign(submit_s=int(log["submit_s"].max()) + 10_000)
    at_once = OnlineRegressor(predictor).fit(jobs_, runs)
    parts = OnlineRegressor(predictor)
    for part in range(0, len(log), 150):
        parts.partial_fit(jobs_[part : part + 150], runs[part : part + 150])
    for model in (parts, pickle.loads(pickle.dumps(parts))):
        assert np.array_equal(model.predict(later), at_once.predict(later))
        assert np.array_equal(model.predict_within(later), at_once.predict_within(later))


def test_users_with_enough_jobs_have_models_of_their_own(log: Any) -> None:
    rows, runs = features(log), log["run_s"].to_numpy()
    few = rows["user"] == 0
    keep = ~few | (few.cumsum() <= 19)
    rows, runs = rows[keep], runs[keep]
    model = PerUser(line(), jobs_min=20).fit(rows, runs)
    assert sorted(model.models_) == [1.0, 2.0, 3.0, 4.0]
    mine = rows["user"] == 3
    own = line().fit(rows[mine].to_numpy(), runs[mine])
    assert np.allclose(model.predict(rows[mine]), own.predict(rows[mine].to_numpy()))
    # The user with 19 jobs: a model of all users' jobs, or what a column says.
    everybody = line().fit(rows.to_numpy(), runs)
    theirs = rows["user"] == 0
    assert np.allclose(model.predict(rows[theirs]), everybody.predict(rows[theirs].to_numpy()))
    column = PerUser(line(), fallback="mean-10").fit(rows, runs)
    assert column.predict(rows[theirs]).tolist() == rows.loc[theirs, "mean-10"].tolist()
    with pytest.raises(ValueError, match="no column 'usr': did you mean 'user'"):
        PerUser(line(), user="usr").fit(rows, runs)


def test_users_are_trained_by_several_processes(log: Any) -> None:
    rows, runs = features(log), log["run_s"].to_numpy()
    one = PerUser(GradientBoosting(trees=5)).fit(rows, runs)
    two = PerUser(GradientBoosting(trees=5), n_jobs=2).fit(rows, runs)
    assert np.array_equal(one.predict(rows), two.predict(rows))


def test_boosting_is_the_same_each_time_and_has_quantiles(log: Any) -> None:
    rows, runs = features(log), log["run_s"].to_numpy()
    model = GradientBoosting(trees=40, random_state=3)
    said = clone(model).fit(rows, runs).predict(rows)
    assert np.array_equal(clone(model).set_params(n_jobs=2).fit(rows, runs).predict(rows), said)
    assert np.abs(said - runs).mean() < 0.5 * np.abs(np.median(runs) - runs).mean()
    high = GradientBoosting(level=0.9, trees=40).fit(rows, runs).predict(rows)
    assert 0.85 < (runs <= high).mean() < 0.97


def test_a_residual_is_added_to_what_a_column_says() -> None:
    rows = np.column_stack([np.arange(30.0), np.full(30, 7.0)])
    model = Residual(line(), base=0).fit(rows, rows[:, 0] + 5.0)
    assert np.allclose(model.predict([[1000.0, 7.0]]), 1005.0)
    # Where nothing is said, as where 0 is.
    assert np.allclose(Residual(Zero(), base=0).fit(rows, rows[:, 0]).predict([[np.nan, 7.0]]), 0.0)


class Zero(RegressorMixin, BaseEstimator):
    """Says 0."""

    def fit(self, X: Any, y: Any) -> Zero:
        return self

    def predict(self, X: Any) -> Any:
        return np.zeros(len(X))


def test_conformal_quantiles_are_ranks_of_errors() -> None:
    # The last twenty of eighty errors are 1 to 20.
    runs = np.concatenate([np.full(60, 1000.0), np.arange(1.0, 21.0)])
    model = Conformal(Zero(), levels=(0.5, 0.9, 0.99)).fit(np.zeros((80, 1)), runs)
    # Ranks: the level of 21, rounded up, and the largest where there are not so many.
    assert model.predict_within(np.zeros((1, 1))).tolist() == [[11.0, 19.0, 20.0]]


def test_automl() -> None:
    pytest.importorskip("flaml.automl.automl", reason="tidepool[automl] is not installed", exc_type=ImportError)
    numbers = np.random.default_rng(5)
    rows = numbers.normal(size=(200, 3))
    runs = 100 + 30 * rows[:, 0] + numbers.normal(size=200)
    model = AutoML(iterations=10, random_state=7)
    said = clone(model).fit(rows, runs).predict(rows)
    assert np.abs(said - runs).mean() < 10
    assert np.array_equal(clone(model).fit(rows, runs).predict(rows), said)
    # Few jobs, and all the same: the median.
    few = AutoML(iterations=2).fit(rows[:3], [5.0, 6.0, 9.0])
    assert few.predict(rows[:2]).tolist() == [6.0, 6.0]
    # Seconds end it as well.
    begun = time.monotonic()
    assert np.isfinite(AutoML(seconds=0.5, iterations=None).fit(rows, runs).predict(rows)).all()
    assert time.monotonic() - begun < 30
    with pytest.raises(ValueError, match="AutoML without end"):
        AutoML(iterations=None).fit(rows, runs)


def test_automl_that_is_missing_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "flaml.automl.automl", None)
    with pytest.raises(jobs.MissingError, match=r"tidepool\[automl\]"):
        AutoML().fit(np.arange(40.0).reshape(20, 2), np.arange(20.0))


def test_the_papers_linear_regression_takes_what_is_unknown(tmp_path: Path) -> None:
    log = jobs.read(jobs_log.write(tmp_path / "some.swf", jobs_log.lines(60)))
    rows = features(log, history=False)
    assert rows.isna().any().any()
    assert isinstance(line().fit(rows, log["run_s"])[-1], LinearRegression)
