"""`tidepool.sim`: with the real program, and what it says against what a data frame has."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import BUILT, WORKSPACE
from tidepool import TidepoolError, sim

DISK = {"name": "disk", "kind": "hdd", "random": "10ms", "write-rate": "100MB"}
FLASH = {"name": "flash", "kind": "ssd", "channels": 4, "read": "50us", "program": "200us"}
SYSTEM: dict[str, Any] = {
    "device": [DISK, FLASH],
    "servers": [{"name": "hdd", "device": "disk"}, {"name": "ssd", "device": "flash", "price": 4}],
    "layout": {"stripe": "16KiB"},
    "workload": [{"name": "w", "kind": "ior", "ranks": 2, "block": "256KiB", "transfer": "64KiB", "open": True}],
}
"""A small system."""


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEPOOL_PROGRAM", str(BUILT / "tidepool"))


def test_a_run() -> None:
    result = sim.run(SYSTEM, sub_requests=True)
    # Two ranks: open, four writes, close.
    assert (result.summary["requests"], result.summary["bytes_written"]) == (12, 512 << 10)
    again = sim.run(SYSTEM, scheduler="optimistic", threads=2)
    assert again.run["trace"] == result.run["trace"]
    lines = (result.dir / "requests.csv").read_text().splitlines()
    assert len(lines) == 13
    dir = result.dir
    del result
    assert not dir.exists()


def test_frames() -> None:
    pandas = pytest.importorskip("pandas")
    result = sim.run(SYSTEM, sub_requests=True)
    requests = result.requests
    assert len(requests) == 12
    assert list(requests["end_ns"]) == sorted(requests["end_ns"])
    write = result.summary["ops"]["write"]
    of_writes = requests[requests["op"] == "write"]["latency_ns"]
    assert (of_writes.max(), of_writes.mean()) == (write["max_ns"], pytest.approx(write["mean_ns"]))
    latency = result.latency.set_index("op")
    assert latency.loc["write", "count"] == 8
    pieces = result.sub_requests
    assert pieces[pieces["type"] == "write"]["length"].sum() == 512 << 10
    assert list(result.servers["class"]) == ["hdd", "ssd"]
    assert result.over_time.groupby("class")["bytes_written"].sum().to_dict() == {"hdd": 256 << 10, "ssd": 256 << 10}
    with pytest.raises(sim.SimulationError, match="sub_requests=True"):
        sim.run(SYSTEM).sub_requests  # noqa: B018
    assert isinstance(result.servers, pandas.DataFrame)
    assert result.nodes.empty
    cached = sim.run(SYSTEM, client={"ranks-per-node": 1, "cache": {"size": "64MiB"}})
    assert list(cached.nodes["number"]) == list(range(len(cached.nodes)))
    assert cached.nodes["bytes_flushed"].sum() == 512 << 10
    assert "bytes_hit" in cached.nodes
    assert "cache" not in cached.nodes


def test_parquet(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    result = sim.run(SYSTEM)
    result.requests.to_parquet(tmp_path / "requests.parquet")
    pandas.testing.assert_frame_equal(pandas.read_parquet(tmp_path / "requests.parquet"), result.requests)


def test_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    result = sim.run(SYSTEM)
    assert result.summary["requests"] == 12
    with pytest.raises(sim.SimulationError, match=r"pip install 'tidepool\[sim\]'"):
        result.requests  # noqa: B018


def test_experiments_as_files_text_and_with_changes(tmp_path: Path) -> None:
    file = WORKSPACE / "experiments" / "hpis3" / "fig7.toml"
    small = {"workload": {"ior": {"block": "1MiB"}}}
    text = file.read_text().replace("32MiB", "1MiB")
    (tmp_path / "small.toml").write_text(text)
    trace = sim.run(tmp_path / "small.toml").run["trace"]
    assert sim.run(str(tmp_path / "small.toml")).run["trace"] == trace
    assert sim.run(text).run["trace"] == trace
    if sys.version_info >= (3, 11):
        # Changed to what it is.
        assert sim.run(tmp_path / "small.toml", network={}, **small).run["trace"] == trace
        assert sim.run(text, seed=77).run["trace"] != trace
        assert sim.run(text, layout={"stripe": "32KiB"}).run["trace"] != trace
        with pytest.raises(sim.SimulationError, match="no servers with the name 'sdd'"):
            sim.run(text, servers={"sdd": {"weight": 3}})


def test_traces_beside_a_file(tmp_path: Path) -> None:
    (tmp_path / "requests.txt").write_text("0 0 write a 0 4096\n")
    load = {"name": "t", "kind": "trace", "path": "requests.txt"}
    (tmp_path / "e.toml").write_text(sim._toml({**SYSTEM, "workload": [load]}))
    assert sim.run(tmp_path / "e.toml").summary["requests"] == 1
    if sys.version_info >= (3, 11):
        assert sim.run(tmp_path / "e.toml", seed=4, server={"threads": 2}).summary["requests"] == 1


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(sim.SimulationError, match="did you mean 'stripe'") as refused:
        sim.run({**SYSTEM, "layout": {"stirpe": "16KiB"}})
    assert refused.value.code == 2
    assert isinstance(refused.value, TidepoolError)
    with pytest.raises(sim.SimulationError, match=r"none\.toml"):
        sim.run("none.toml")
    with pytest.raises(sim.SimulationError, match="has no place in an experiment"):
        sim.run({**SYSTEM, "seed": object()})
    monkeypatch.setenv("TIDEPOOL_PROGRAM", "/nowhere/tidepool")
    with pytest.raises(sim.SimulationError, match="/nowhere/tidepool: No such file"):
        sim.run(SYSTEM)
    monkeypatch.delenv("TIDEPOOL_PROGRAM")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(sim.SimulationError, match="no program 'tidepool'"):
        sim.run(SYSTEM)


def test_strings_of_any_kind() -> None:
    odd = 'a"b\\c\n\t\x7f\u20ac\U0001f600'
    text = sim._toml({odd: [odd, True, 1.5, {"x": odd, "none": None}]})
    if sys.version_info >= (3, 11):
        import tomllib

        assert tomllib.loads(text) == {odd: [odd, True, 1.5, {"x": odd}]}


def test_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    guide = (WORKSPACE / "docs" / "guide" / "simulator.md").read_text()
    # The experiment, as the guide makes it.
    made = re.findall(r"^printf .* >>? system\.toml$", guide, re.MULTILINE)
    subprocess.run(["sh", "-c", "\n".join(made)], check=True)
    (block,) = re.findall(r"^```python\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    exec(compile(block, "simulator.md", "exec"), {})
    assert (tmp_path / "requests.parquet").exists()


def test_sweeps(tmp_path: Path) -> None:
    sweep = sim.sweep(SYSTEM, {"weight.ssd": "1..3", "stripe-size": ["16KiB", "64KiB"]}, seeds=2, jobs=2)
    assert [row["weight.ssd"] for row in sweep.rows] == ["1"] * 4 + ["2"] * 4 + ["3"] * 4
    kept = sim.sweep(SYSTEM, {"weight.ssd": [1, 2]}, out=tmp_path / "s")
    assert (tmp_path / "s" / "sweep.html").exists()
    assert kept.rows == sim.sweep(SYSTEM, {"weight.ssd": [1, 2]}, out=tmp_path / "s").rows
    pytest.importorskip("pandas")
    points = sweep.points
    assert (len(points), points["requests"].unique().tolist()) == (12, [12])
    assert points.groupby("weight.ssd")["bytes_per_second"].mean().is_monotonic_increasing


def test_tuning() -> None:
    tuning = sim.tune(SYSTEM, {"weight.ssd": "1..3", "count.ssd": [0, 1]}, cost={"hdd": 2})
    assert tuning.best["knobs"] == {"weight.ssd": 3, "count.ssd": 1}
    assert [on["price"] for on in tuning.frontier] == [2.0, 6.0]
    assert len(tuning.tried) == 6
    pytest.importorskip("pandas")
    assert sorted(tuning.trials["count.ssd"].unique()) == [0, 1]
