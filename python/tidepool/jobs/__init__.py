"""How long jobs will run, predicted from what is known when they are submitted.

    from tidepool import jobs

    log = jobs.read("cluster.swf")
    said = jobs.replay(log, "default")          # run time, and times within which 90 % and 95 % are over
    one = jobs.Online("default")                # the same, job by job
    print(one.submitted(1, submit_s=0, request_s=3600, user=7))
    ran = jobs.simulate(log, policy="easy", estimate="default")

`python -m tidepool.jobs.evaluate LOG --out DIR` judges predictors on a log. Estimators with `fit` and `predict` are in
`tidepool.jobs.estimators` and `tidepool.jobs.automl`. All of it takes `pip install 'tidepool[jobs]'`, AutoML
`tidepool[automl]`, training on a Dask cluster `tidepool[cluster]`. The guide is docs/guide/jobs.md.
"""

from __future__ import annotations

from tidepool.jobs._needs import MissingError
from tidepool.jobs.log import KNOWN, LogError, read
from tidepool.jobs.online import PREDICTORS, Online, Prediction, calibrated, replay
from tidepool.jobs.scheduler import simulate

__all__ = [
    "KNOWN",
    "PREDICTORS",
    "LogError",
    "MissingError",
    "Online",
    "Prediction",
    "calibrated",
    "read",
    "replay",
    "simulate",
]
