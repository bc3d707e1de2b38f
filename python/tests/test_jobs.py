"""`tidepool.jobs`: logs, predictors job by job and over logs, features; nobody knows the future."""

from __future__ import annotations

import gzip
import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

import jobs_log
from conftest import BUILT, WORKSPACE, python
from tidepool import jobs

if TYPE_CHECKING:
    from pathlib import Path

pandas = pytest.importorskip("pandas")
numpy = pytest.importorskip("numpy")


def test_a_log(path: Path, tmp_path: Path) -> None:
    log = jobs.read(path)
    rows = jobs_log.lines(jobs_log.JOBS)
    assert log["submit_s"].tolist() == [row[1] for row in rows]
    assert log["run_s"].tolist() == [row[3] for row in rows]
    assert log["request_s"].tolist() == [row[8] for row in rows]
    assert log["executable"].tolist() == [row[13] for row in rows]
    assert log["start_s"].tolist() == [row[1] + max(row[2], 0) for row in rows]
    assert log.attrs["processors"] == 64
    unsaid = sum(row[8] < 0 for row in rows)
    assert log.attrs["repairs"]["jobs without a time limit: the run time counts"] == unsaid > 0
    packed = tmp_path / "made-up.swf.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert jobs.read(packed).equals(log)
    assert len(jobs.read(path, jobs=7)) == 7


def test_what_sacct_and_tables_say(tmp_path: Path) -> None:
    head = "JobIDRaw|User|Submit|Start|ElapsedRaw|TimelimitRaw|State|AllocCPUS\n"
    rows = ["7|ada|2025-01-01T00:00:00|2025-01-01T00:10:00|90|60|COMPLETED|4"]
    rows += [
        "8|bo|2025-01-01T00:05:00|2025-01-01T00:05:00|30||COMPLETED|8",
        "8.batch|||2025-01-01T00:05:00|30||COMPLETED|8",
    ]
    (tmp_path / "jobs").write_text(head + "".join(f"{row}\n" for row in rows))
    log = jobs.read(tmp_path / "jobs")
    names = ["number", "submit_s", "start_s", "run_s", "request_s", "processors", "user"]
    assert log[names].to_numpy().tolist() == [[7, 0, 600, 90, 3600, 4, 1], [8, 300, 300, 30, -1, 8, 2]]
    assert log.attrs["repairs"]["steps of jobs, left out"] == 1
    (tmp_path / "jobs.csv").write_text("job,submit_seconds,run_seconds,processors\n3,5,60,2\n")
    assert jobs.read(tmp_path / "jobs.csv")[["number", "submit_s", "run_s"]].to_numpy().tolist() == [[3, 5, 60]]


def test_a_job_that_outlived_its_limit_ran_for_as_long_as_it_did(tmp_path: Path) -> None:
    log = jobs.read(jobs_log.write(tmp_path / "over.swf", [[1, 0, 5, 900, 1, -1, -1, 1, 600]]))
    assert log[["run_s", "request_s", "user"]].to_numpy().tolist() == [[900, 600, -1]]


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(jobs.LogError, match="nowhere"):
        jobs.read(tmp_path / "nowhere")
    for text in (b"hello\n", b"", b"\x1f\x8b\x08\x00", gzip.compress(b"hello\n")[:-9]):
        (tmp_path / "odd").write_bytes(text)
        with pytest.raises(jobs.LogError, match="odd"):
            jobs.read(tmp_path / "odd")


@pytest.mark.parametrize("predictor", jobs.PREDICTORS)
def test_job_by_job_is_what_a_replay_says(log: Any, predictor: str) -> None:
    part = log.head(150)
    one = jobs.Online(predictor)
    # Ends before starts, and both before submissions of the same second.
    events = []
    for at, job in enumerate(part.itertuples()):
        events += [(job.submit_s, 2, at, job), (job.start_s, 1, at, job), (job.start_s + job.run_s, 0, at, job)]
    said = {}
    for when, what, at, job in sorted(events, key=lambda event: event[:3]):
        if what == 2:
            values = {name: getattr(job, name) for name in jobs.KNOWN}
            known: Any = {name: None if value < 0 else value for name, value in values.items()}
            said[at] = one.submitted(at, **known)
        elif what == 1:
            one.started(at, when)
        else:
            one.ended(at, job.run_s)
    wanted = jobs.replay(part, predictor)
    assert numpy.array_equal(numpy.array([said[at] for at in range(len(part))]), wanted)
    assert (wanted[:, 1] <= wanted[:, 2]).all()


def test_a_cancelled_job_teaches_nothing() -> None:
    one, other = jobs.Online("last"), jobs.Online("last")
    for predictor in (one, other):
        predictor.submitted(1, submit_s=0, request_s=100, user=1)
    one.cancelled(1)
    one.ended(1, 7.0)
    other.ended(1, 7.0)
    assert one.submitted(2, submit_s=9, request_s=100, user=1).run_s == 100.0
    assert other.submitted(2, submit_s=9, request_s=100, user=1).run_s == 7.0


def test_unknown_predictors_and_odd_columns_are_errors(log: Any) -> None:
    with pytest.raises(ValueError, match="'defualt' is no predictor; there are default,"):
        jobs.Online("defualt")
    with pytest.raises(ValueError, match="order of their submission"):
        jobs.replay(log.iloc[::-1])
    with pytest.raises(ValueError, match="finite run time is needed for each of the 500"):
        jobs.calibrated(log, numpy.full(len(log), numpy.nan))
    with pytest.raises(KeyError, match="user"):
        jobs.replay(log.drop(columns="user"))
    with pytest.raises(ValueError, match="column 'user' is above"):
        jobs.replay(log.assign(user=1 << 40))


def test_times_that_go_with_given_run_times_hold(log: Any) -> None:
    # As the compiled predictor does, whose points these are.
    request = jobs.replay(log, "request")
    assert numpy.array_equal(jobs.calibrated(log, request[:, 0]), request)
    said = jobs.calibrated(log, numpy.full(len(log), 300.0))
    covered = (log["run_s"].to_numpy()[:, None] <= said[:, 1:]).mean(axis=0)
    assert covered == pytest.approx([0.90, 0.95], abs=0.03)


def test_the_commands_figures_are_the_same_to_the_digit(path: Path) -> None:
    pytest.importorskip("sklearn")
    from tidepool.jobs.evaluate import evaluate

    done = subprocess.run(
        [BUILT / "tidepool", "jobs", "evaluate", path, "--json"], capture_output=True, text=True, check=True
    )
    told = {row["predictor"]: row for row in json.loads(done.stdout)["predictors"]}
    ours = evaluate(path, predictors=list(jobs.PREDICTORS))
    assert set(told) == {row.name for row in ours.rows}
    for row in ours.rows:
        theirs, measures = told[row.name], row.measures
        assert measures.of_users_s == theirs["medae_of_users_seconds"]
        assert sorted(user.medae_s for user in row.users) == measures.of_users_s
        assert measures.at_user_s(0.5) == theirs["medae_median_user_seconds"]
        assert measures.at_user_s(0.75) == theirs["medae_p75_user_seconds"]
        assert (measures.mean_s, measures.under) == (theirs["mean_absolute_error_seconds"], theirs["under_share"])
        assert measures.pinball_s == list(theirs["pinball_seconds"].values())
        assert measures.covered == list(theirs["coverage"].values())
        assert measures.covered_tenths == list(theirs["coverage_of_tenths"].values())


def changed_after(log: Any, place: int) -> Any:
    """Another log, of which only what was known at a job's submission is the same; and that submission's time."""
    numbers = numpy.random.default_rng(place)
    now = log["submit_s"].iloc[place]
    other = log.copy()
    ends = log["start_s"] + log["run_s"]
    later = numpy.arange(len(log)) > place
    # Who waits still will start another time, who runs will end another time, and what comes is all different.
    waits = (log["start_s"] > now) | later
    other.loc[waits, "start_s"] = now + 1 + numbers.integers(0, 9000, waits.sum())
    open_ = (ends > now) | later
    least = (now - other["start_s"]).clip(lower=0)[open_]
    other.loc[open_, "run_s"] = least + 1 + numbers.integers(0, 90_000, open_.sum())
    for name in ("request_s", "processors", "user", "group", "executable", "queue"):
        other.loc[later, name] = numbers.integers(0, 4000, later.sum())
    other.loc[later, "submit_s"] = now + numpy.sort(numbers.integers(1, 90_000, later.sum()))
    other["start_s"] = numpy.maximum(other["start_s"], other["submit_s"])
    return other


@pytest.mark.parametrize("place", [30, 200, 410])
def test_features_and_predictions_know_nothing_of_what_comes_later(log: Any, place: int) -> None:
    pytest.importorskip("sklearn")
    from tidepool.jobs.features import FEATURES, LEARNED, features

    other = changed_after(log, place)
    assert (other["run_s"] != log["run_s"]).sum() > (len(log) - place) * 0.9
    ours, theirs = features(log, learned=True), features(other, learned=True)
    assert list(ours) == [*FEATURES, *LEARNED]
    pandas.testing.assert_frame_equal(ours.head(place + 1), theirs.head(place + 1))
    # Whoever looks at everything would have noticed.
    assert not ours.iloc[place + 1 :].equals(theirs.iloc[place + 1 :])
    for predictor in jobs.PREDICTORS:
        said = jobs.replay(log, predictor), jobs.replay(other, predictor)
        assert numpy.array_equal(*(rows[: place + 1] for rows in said))


def test_the_guide_names_all_features() -> None:
    pytest.importorskip("sklearn")
    from tidepool.jobs.features import FEATURES, LEARNED

    text = (WORKSPACE / "docs" / "guide" / "jobs.md").read_text()
    told = next(part for part in text.split("\n- ") if part.startswith("**What they are told**"))
    row = next(line for line in text.splitlines() if line.startswith("| `lgbm-expert`"))
    assert [name for name in FEATURES if f"`{name}`" not in told] == []
    assert [name for name in LEARNED if f"`{name}`" not in row] == []


def test_features_by_hand(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    from tidepool.jobs.features import features

    # User 7: three jobs, of which the first is over when the third is submitted; user 8 has one of its own between.
    rows = [
        [1, 86_400, 10, 100, 4, -1, -1, 4, 600, -1, 1, 7, 1, 1, 1, -1, -1, -1],
        [2, 86_450, 0, 9000, 4, -1, -1, 4, 600, -1, 1, 7, 1, 1, 1, -1, -1, -1],
        [3, 86_460, 0, 50, 4, -1, -1, 4, -1, -1, 1, 8, 1, 1, 1, -1, -1, -1],
        [4, 90_000, 0, 9, 8, -1, -1, 8, 600, -1, 1, 7, 1, 1, 1, -1, -1, -1],
    ]
    rows_of = features(jobs.read(jobs_log.write(tmp_path / "hand.swf", rows)))
    last = rows_of.iloc[3]
    assert last[["hour", "weekday", "processors", "user"]].tolist() == [1.0, 1.0, 8.0, 7.0]
    assert last[["submitted", "ended", "in_system"]].tolist() == [2.0, 1.0, 1.0]
    assert last[["since_submit_s", "since_end_s"]].tolist() == [3550.0, 90_000.0 - 86_510.0]
    # The first ran for 100 of 600 seconds.
    assert last[["last", "last-two", "max-10", "mean-ratio"]].tolist() == [100.0] * 3 + [pytest.approx(100.0)]
    assert numpy.isnan(rows_of.loc[2, ["request_s", "since_submit_s", "since_end_s"]].astype(float)).all()


def test_a_missing_package_is_named_with_what_brings_it() -> None:
    hidden = "import sys; sys.modules[{!r}] = None\n"
    for module, program, extra in (
        ("pandas", "from tidepool import jobs; jobs.read('/dev/null')", "tidepool[jobs]"),
        ("sklearn.base", "import tidepool.jobs.estimators", "tidepool[jobs]"),
        (
            "distributed",
            "from tidepool.jobs.evaluate import cluster\nwith cluster('tcp://nowhere'): pass",
            "tidepool[cluster]",
        ),
    ):
        done = python(hidden.format(module) + program)
        assert done.returncode == 1
        assert f"pip install '{extra}'" in done.stderr, done.stderr
