"""Logs on the simulated scheduler, from Python: by hand, and as the command says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import jobs_log
from conftest import BUILT

pytest.importorskip("pandas")

from tidepool import jobs


def row(number: int, submit: int, run: int, processors: int, request: int) -> list[int]:
    return [number, submit, 0, run, processors, -1, -1, processors, request, -1, 1, 1, -1, -1, -1, -1, -1, -1]


def test_by_hand(tmp_path: Path) -> None:
    # Three of four processors run for 100 s; the second job wants all, the third fits before, the fourth delays it.
    rows = [row(1, 0, 100, 3, 100), row(2, 1, 10, 4, 10), row(3, 2, 50, 1, 50), row(4, 3, 200, 1, 200)]
    log = jobs.read(jobs_log.write(tmp_path / "four.swf", rows))
    starts = {
        policy: jobs.simulate(log, policy=policy, nodes=4)["start_s"].tolist()
        for policy in ("fcfs", "easy", "conservative")
    }
    assert starts == {"fcfs": [0, 100, 110, 110], "easy": [0, 100, 2, 110], "conservative": [0, 100, 2, 110]}
    ran = jobs.simulate(log, nodes=3)
    assert ran.attrs["too_large"] == 1
    assert ran.index.tolist() == [0, 2, 3]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"policy": "fcfs"}, ["--policy", "fcfs"]),
        (
            {"policy": "easy", "estimate": "default:90", "backfill": "expected"},
            ["--policy", "easy", "--estimate", "default:90", "--backfill", "expected"],
        ),
        (
            {"policy": "easy", "order": "expected", "patience_s": 3600},
            ["--policy", "easy", "--order", "expected", "--patience", "1h"],
        ),
        (
            {"estimate": "lambda=0.1", "allocation": "contiguous"},
            ["--estimate", "lambda=0.1", "--allocation", "contiguous"],
        ),
    ],
)
def test_it_says_what_the_command_says(path: Path, asked: dict[str, Any], words: list[str]) -> None:
    measures = jobs.simulate(jobs.read(path), **asked, nodes=64).attrs["measures"]
    policy = [] if "policy" in asked else ["--policy", "conservative"]
    args: list[str | Path] = [BUILT / "tidepool", "jobs", "simulate", path, "--nodes", "64", "--json", *policy]
    told = json.loads(subprocess.run([*args, *words], check=True, capture_output=True, text=True).stdout)["result"]
    assert measures["mean_wait_s"] == told["mean_wait_seconds"]
    assert measures["mean_bounded_slowdown"] == told["mean_bounded_slowdown"]
    shares = told["known_ahead"] and told["known_ahead"]["shares"]
    assert (measures["known_ahead"] and [share for _, share in measures["known_ahead"]]) == shares


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"policy": "esay"}, "'esay' is none of fcfs, easy, conservative"),
        ({"estimate": "soon"}, "estimate: 'soon' is none of"),
        ({"backfill": "shortest"}, "is for policy 'easy'"),
        ({"order": "expected"}, "order: 'expected' is for policy 'easy'"),
        ({"order": "shortest"}, "'shortest' is none of submission, expected"),
        ({"policy": "easy", "patience_s": 0}, "less than a second"),
        ({"allocation": "switch"}, "switch"),
        ({"nodes": 0, "per_node": 0}, None),
    ],
)
def test_what_cannot_be_is_said(path: Path, asked: dict[str, Any], said: str | None) -> None:
    log = jobs.read(path)
    if said is None:
        log.attrs = {}
        said = "how large the machine is; say nodes="
    with pytest.raises(ValueError, match=said):
        jobs.simulate(log, **asked)
    with pytest.raises(ValueError, match="order of their submission"):
        jobs.simulate(log.iloc[::-1], nodes=64)
