"""`python -m tidepool.jobs.evaluate`: the protocol, its files, and that batch learners know no future, either."""

from __future__ import annotations

import csv
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from conftest import WORKSPACE, python
from test_jobs import changed_after

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("sklearn")
pytest.importorskip("lightgbm")

import numpy as np

from tidepool.jobs import protocol
from tidepool.jobs.estimators import GradientBoosting, PerUser
from tidepool.jobs.evaluate import evaluate, main
from tidepool.jobs.features import features
from tidepool.jobs.methods import Options, line


def test_only_jobs_that_are_over_teach(log: Any) -> None:
    split = protocol.temporal(log, 0.5, 4)
    assert np.concatenate([ask for _, ask in split.blocks]).tolist() == list(range(250, 500)) == split.judged.tolist()
    ends = (log["start_s"] + log["run_s"]).to_numpy()
    for teach, ask in split.blocks:
        begins = log["submit_s"].iloc[ask[0]]
        assert teach.tolist() == [place for place in range(ask[0]) if ends[place] <= begins]
        assert 0 < len(teach) < ask[0]


def test_a_random_split_is_halves_of_the_same_seed(log: Any) -> None:
    one, other, again = (protocol.random(log, 0.5, seed) for seed in (1, 2, 1))
    assert len(one.judged) == len(one.blocks[0][0]) == 250
    assert sorted([*one.judged, *one.blocks[0][0]]) == list(range(500))
    assert one.judged.tolist() == again.judged.tolist() != other.judged.tolist()


@pytest.mark.parametrize("model", [GradientBoosting(trees=10), PerUser(line())], ids=["boosting", "lines"])
def test_batch_learners_know_nothing_of_what_comes_later(log: Any, model: Any) -> None:
    place = 377  # in the midst of a block
    other = changed_after(log, place)
    said = [
        protocol.predicted(model, features(one), one, protocol.temporal(one, 0.5, 4)).judged_s for one in (log, other)
    ]
    # But for digits: sums over a block of rows round by how many there are.
    assert np.allclose(said[0][250 : place + 1], said[1][250 : place + 1], rtol=1e-12, atol=1e-9)
    assert not np.array_equal(said[0][place + 1 :], said[1][place + 1 :])


def test_r2_by_hand() -> None:
    real = np.array([1.0, 2.0, 3.0])
    assert protocol.r2(real, real) == 1.0
    assert protocol.r2(real, np.full(3, 2.0)) == 0.0
    assert protocol.r2(real, np.array([1.0, 2.0, 5.0])) == -1.0
    assert protocol.r2(np.ones(3), real) is None


def test_a_log_in_one_command(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(path), "--trainings", "2", "--workers", "1", "--out", str(tmp_path / "out")]
    for name in ("default", "request", "lgbm", "linear-batch", "lgbm-quantiles"):
        words += ["--predictor", name]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "250 are judged; 5 users" in out
    assert "7.4 h by the request (S2 Figure 5)" in out
    assert "split: temporal" in out
    assert "leaks" not in out
    value = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    rows = {row["predictor"]: row for row in value["logs"][0]["predictors"]}
    assert list(rows) == ["default", "request", "lgbm", "linear-batch", "lgbm-quantiles"]
    assert rows["linear-batch"]["medae_p50_user_seconds"] < rows["request"]["medae_p50_user_seconds"]
    assert (rows["lgbm"]["learns"], rows["default"]["learns"]) == ("2 times", "after each job")
    # The same points, other quantiles.
    assert rows["lgbm"]["medae_of_users_seconds"] == rows["lgbm-quantiles"]["medae_of_users_seconds"]
    assert rows["lgbm"]["pinball_seconds"] != rows["lgbm-quantiles"]["pinball_seconds"]
    for name in ("lgbm", "lgbm-quantiles"):
        assert abs(rows[name]["coverage"]["90"] - 0.9) < 0.05
        assert abs(rows[name]["coverage"]["95"] - 0.95) < 0.04
    assert all(user["r2_taught"] is not None and user["taught"] >= 20 for user in rows["linear-batch"]["users"])
    assert all(user["r2_taught"] is None for user in rows["default"]["users"])
    with open(tmp_path / "out" / "users.csv", newline="") as file:
        users = list(csv.DictReader(file))
    assert len(users) == 5 * len(rows)
    for name, row in rows.items():
        mine = sorted(float(user["medae_seconds"]) for user in users if user["predictor"] == name)
        assert mine == row["medae_of_users_seconds"]
    with open(tmp_path / "out" / "summary.csv", newline="") as file:
        assert [line["predictor"] for line in csv.DictReader(file)] == list(rows)
    page = (tmp_path / "out" / "index.html").read_text()
    for name in ("fig4-r2", "fig5-minutes", "fig5-hours"):
        assert (tmp_path / "out" / f"{name}.svg").read_text().startswith("<?xml")
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert page.count("<svg ") == 3
    assert "21 minutes by AutoML, 43 by linear regression, 186 by the request" in page


def test_a_random_split_is_labelled(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(path), "--split", "random", "--predictor", "request", "--predictor", "linear-batch"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    # Each table, each line of CSV, each panel.
    assert capsys.readouterr().out.count("leaks the future") == 2
    for name in ("summary.csv", "users.csv"):
        lines = (tmp_path / name).read_text().splitlines()
        assert len(lines) > 2
        assert all('"random, leaks the future: only to reproduce the papers"' in line for line in lines[1:])
    page = (tmp_path / "index.html").read_text()
    assert page.count("(random split: leaks the future)</th>") == 1
    for name in ("fig4-r2", "fig5-minutes", "fig5-hours"):
        # Letters are paths there; what they say stands beside them.
        assert "(random split: leaks the future)" in (tmp_path / f"{name}.svg").read_text()
    assert main([*words, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)["logs"][0]
    assert value["split"] == "random, leaks the future: only to reproduce the papers"
    assert all("coverage" not in row for row in value["predictors"])
    assert main([*words, "--predictor", "default"]) == 2
    assert "cannot be judged on a random split" in capsys.readouterr().err


def test_what_cannot_be_asked_for(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, code, said in (
        ([str(path), "--predictor", "lgmb"], 2, "'lgmb' is no predictor; there are default,"),
        ([str(tmp_path / "none.swf")], 1, "none.swf"),
        ([str(path), "--warm-up", "1"], 1, "no share between 0 and 1"),
        ([str(path), "--jobs", "2", "--predictor", "lgbm"], 1, "too few to learn from"),
    ):
        assert main(words) == code
        assert said in capsys.readouterr().err


def test_automl_in_an_evaluation(path: Path) -> None:
    pytest.importorskip("flaml.automl.automl", reason="tidepool[automl] is not installed", exc_type=ImportError)
    one, again = (evaluate(path, predictors=["automl"], options=Options(automl_iterations=3)).rows[0] for _ in range(2))
    assert one.measures == again.measures
    assert one.learns == "at the split"
    assert all(user.r2_taught is not None for user in one.users)


def test_a_dask_cluster_trains(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    distributed = pytest.importorskip("distributed", reason="tidepool[cluster] is not installed")
    here = evaluate(path, predictors=["linear-batch"])
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as some:
        assert main([str(path), "--predictor", "linear-batch", "--json", "--dask", some.scheduler_address]) == 0
    row = json.loads(capsys.readouterr().out)["logs"][0]["predictors"][0]
    assert row["medae_of_users_seconds"] == here.rows[0].measures.of_users_s


def test_the_guides_commands(path: Path, tmp_path: Path) -> None:
    """Those of docs/guide/jobs.md, on a small log; what they say of Python, too."""
    text = (WORKSPACE / "docs" / "guide" / "jobs.md").read_text()
    commands = re.findall(r"^python -m tidepool\.jobs\.evaluate (.*)$", text, re.MULTILINE)
    assert len(commands) >= 3
    for number, command in enumerate(commands):
        words = command.split()
        if "--dask" in words or "automl" in words:
            # Tests of their own.
            continue
        places = {"machine.swf": str(path), "DIR": str(tmp_path / str(number))}
        quick = ["--trainings", "2", "--workers", "1"]
        assert main([*(places.get(word, word) for word in words), *quick]) == 0
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert blocks
    done = python("\n".join(blocks).replace("machine.swf", str(path)))
    assert (done.stderr, done.returncode) == ("", 0)
