"""AutoML: which model, and with which parameters, is found by trying, within a budget (INVENTORY B2; S0 section 4).

The papers gave auto-sklearn 30 minutes for each user; it no longer installs, so that FLAML does it here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidepool.jobs._needs import need

for _module in ("numpy", "sklearn.utils"):
    need(_module, "jobs", "AutoML")

import numpy as np
from sklearn.utils import check_random_state

from tidepool.jobs.estimators import _Regressor

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

LEARNERS = ("lgbm", "rf", "extra_tree", "kneighbor", "enet")
"""Gradient boosting, forests, neighbours, and a linear model: those that need nothing but FLAML, LightGBM and
scikit-learn."""
JOBS_MIN = 10
"""Below, there is nothing to hold back for a validation: the median is predicted."""


class AutoML(_Regressor):
    """The best model that FLAML finds by mean absolute error on the last tenth of the jobs, then trained on all.

    The budget is `seconds`, as in the papers, or `iterations`, models that are tried. With iterations and a seed the
    same data give the same model on any machine: what is tried then does not depend on how long something took. With
    seconds it depends on how fast the machine was. Given both, whichever ends first.
    """

    def __init__(
        self,
        seconds: float | None = None,
        iterations: int | None = 20,
        learners: tuple[str, ...] = LEARNERS,
        random_state: int | None = 0,
        n_jobs: int | None = 1,
    ) -> None:
        self.seconds = seconds
        self.iterations = iterations
        self.learners = learners
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(self, X: ArrayLike, y: ArrayLike) -> AutoML:
        """Searches; rows have to be in the order of submission, since the last ones validate."""
        if self.seconds is None and self.iterations is None:
            raise ValueError("AutoML without end: give seconds or iterations")
        rows, runs = self._rows_and_runs(X, y)
        seed = check_random_state(self.random_state).randint(1 << 30)
        self.median_ = float(np.median(runs))
        self.search_ = None
        if len(rows) >= JOBS_MIN and runs.min() < runs.max():
            flaml = need("flaml.automl.automl", "automl", "AutoML")
            search = flaml.AutoML()
            search.fit(
                _filled(rows),
                runs,
                task="regression",
                metric="mae",
                time_budget=-1 if self.seconds is None else self.seconds,
                max_iter=self.iterations,
                estimator_list=list(self.learners),
                seed=seed,
                n_jobs=self.n_jobs or 1,
                eval_method="holdout",
                split_type="time",
                # What is tried next must not depend on how long the last model took.
                learner_selector="roundrobin",
                sample=False,
                retrain_full=True,
                log_file_name="",
                verbose=0,
            )
            # Without a model the time was over before the first one was trained.
            self.search_ = search if search.best_estimator is not None else None
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Run times in seconds."""
        rows = self._rows(X, reset=False)
        if self.search_ is None:
            return np.full(len(rows), self.median_)
        said: NDArray[np.float64] = np.asarray(self.search_.predict(_filled(rows)), dtype="float64")
        return said


def _filled(rows: Any) -> Any:
    """Not all learners take NaN: -1 is no value of any feature."""
    return np.where(np.isnan(rows), -1.0, rows)
