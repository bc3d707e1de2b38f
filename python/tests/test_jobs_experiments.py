"""`experiments/run b5`: the experiments understand what `python -m tidepool.jobs.evaluate` says."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from conftest import BUILT, WORKSPACE

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")
pytest.importorskip("lightgbm")
pytest.importorskip("flaml.automl.automl", reason="tidepool[automl] is not installed", exc_type=ImportError)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="experiments need Python 3.11")
def test_an_experiment_of_run_times(tmp_path: Path) -> None:
    words: list[str | Path] = [sys.executable, WORKSPACE / "experiments" / "run", "b5", "--quick", "--out", tmp_path]
    words += ["--tidepool", BUILT / "tidepool", "--memory", tmp_path, "--disk", tmp_path]
    # Elsewhere, so that the installed package is found.
    done = subprocess.run(words, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    # Limits are ten hours, and runs take minutes.
    assert done.stdout.count("at least 5 (published: 8.9 for AutoML)") == 3
    report = json.loads((tmp_path / "b5.json").read_text())
    assert report["quick"]
    assert str(tmp_path) not in json.dumps(report)
    with open(tmp_path / "b5.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    series = {(row["what"], row["series"]) for row in rows if row["kind"] == "measured"}
    learners = ["automl-history", "linear-batch", "request"]
    leaking = {("made up, random split: leaks the future", name) for name in learners}
    assert series == {("made up, temporal split", name) for name in ["default", *learners]} | leaking
    # A row for each of four users, in percent of them.
    assert [row["x"] for row in rows if row["series"] == "default"] == ["25.0", "50.0", "75.0", "100.0"]
    assert {row["series"] for row in rows if row["kind"] == "published"} >= {"AutoML, ForHLR II"}
    assert (tmp_path / "b5.png").read_bytes().startswith(b"\x89PNG")
