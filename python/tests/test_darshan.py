"""Logs of Darshan become traces of requests; the logs are those that its own Python package brings along."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import BUILT
from tidepool import darshan

spec = importlib.util.find_spec("darshan")
LOGS = Path(spec.origin).parent if spec and spec.origin else None
needs_package = pytest.mark.skipif(
    LOGS is None, reason="the package 'darshan' is not installed: pip install 'tidepool[darshan]'"
)


def log(name: str) -> Path:
    assert LOGS is not None
    return LOGS / name


SIMPLE = "tests/input/sample-dxt-simple.darshan"


@needs_package
def test_requests_are_those_of_the_log(tmp_path: Path) -> None:
    out = tmp_path / "trace.txt"
    done = subprocess.run(
        [sys.executable, "-m", "tidepool.darshan", str(log(SIMPLE)), "--out", str(out), "--under", "/yellow"],
        capture_output=True,
        text=True,
        check=True,
    )
    # The POSIX call counts; that of MPI-IO above it is the same data.
    name = "/yellow/usr/projects/eap/users/treddy/simple_dxt_mpi_io_darshan/test.out"
    assert out.read_text() == f"# rank time op file offset length\n0 0.000000000 write {name} 0 4000\n"
    assert "1 requests of 1 ranks to 1 files\nleft out: 1 requests to files of the system" in done.stderr


@needs_package
def test_a_larger_log_is_in_order() -> None:
    backend = darshan._backend()
    path = log("examples/example_logs/dxt.darshan")
    handle = backend.log_open(str(path))
    expected = 0
    while (record := backend.log_get_record(handle, "DXT_POSIX", dtype="dict")) is not None:
        segments = record["read_segments"] + record["write_segments"]
        expected += sum(segment["length"] for segment in segments)
    backend.log_close(handle)
    trace = darshan.read(path, ["/"])
    assert sum(request.length for request in trace.requests) == expected > 0
    times = [request.at_ns for request in trace.requests]
    assert times == sorted(times)
    assert trace.ignored.keys() <= {"reads and writes of no bytes"}


@needs_package
@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "examples/example_logs/example.darshan",
            "no extended tracing; run the program again with DXT_ENABLE_IO_TRACE=1",
        ),
        ("report.py", "no log of Darshan"),
        ("nothing", "there is no such file"),
    ],
)
def test_what_is_no_such_log_is_refused(name: str, why: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert darshan.main([str(log(name))]) == 1
    assert why in capfd.readouterr().err


class Hostile:
    """A backend whose records say what no log should."""

    def __init__(self, record: dict[str, object]) -> None:
        self.records = [record]

    def log_open(self, _: str) -> dict[str, object]:
        return {"handle": 1}

    def log_close(self, _: object) -> None:
        pass

    def log_get_modules(self, _: object) -> dict[str, object]:
        return {"DXT_POSIX": {}}

    def log_get_name_records(self, _: object) -> dict[int, str]:
        return {1: "/data/a b#", 2: "<STDOUT>"}

    def log_get_record(self, _: object, module: str, dtype: str) -> dict[str, object] | None:
        assert (module, dtype) == ("DXT_POSIX", "dict")
        return self.records.pop() if self.records else None


def record(**changed: object) -> dict[str, object]:
    segment = {"offset": 0, "length": 10, "start_time": 0.5, "end_time": 0.6}
    own = {key: changed.pop(key) for key in tuple(changed) if key in segment}
    made: dict[str, object] = {"id": 1, "rank": 0, "write_count": 1, "read_count": 0, "read_segments": []}
    return {**made, "write_segments": [{**segment, **own}], **changed}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"start_time": -0.1}, "a write at -0.1 s"),
        ({"start_time": float("nan")}, "a write at nan s"),
        ({"start_time": float("inf")}, "a write at inf s"),
        ({"start_time": 2e6}, "0 to 1000000"),
        ({"offset": -2}, "10 bytes at -2"),
        ({"length": -1}, "-1 bytes at 0"),
        ({"length": 1 << 62}, "at most up to byte"),
        ({"offset": 1 << 60}, "at most up to byte"),
        ({"rank": -1}, "rank -1; it can be 0 to 999999"),
        ({"rank": 1 << 40}, "rank 1099511627776"),
        ({"write_count": 1 << 40}, "more than 10000000 requests"),
        ({"length": 0}, "left out: 1 reads and writes of no bytes"),
        ({"id": 2}, "left out: 1 requests to files of the system"),
    ],
)
def test_hostile_records_are_refused(
    changed: dict[str, object], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").touch()
    monkeypatch.setattr(darshan, "_backend", lambda: Hostile(record(**changed)))
    with pytest.raises(darshan.LogError, match=why.replace("[", "\\[")):
        darshan.read(tmp_path / "log")


def test_names_and_long_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log").touch()
    monkeypatch.setattr(darshan, "_backend", lambda: Hostile(record(length=(1 << 30) + 5, offset=7)))
    out = tmp_path / "trace"
    assert darshan.main([str(tmp_path / "log"), "--out", str(out)]) == 0
    lines = out.read_text().splitlines()[1:]
    first = f"0 0.000000000 write /data/a%20b%23 7 {1 << 30}"
    assert lines == [first, f"0 0.000000000 write /data/a%20b%23 {7 + (1 << 30)} 5"]


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "darshan", None)
    monkeypatch.setitem(sys.modules, "darshan.backend.cffi_backend", None)
    with pytest.raises(darshan.LogError, match=r"pip install 'tidepool\[darshan\]'"):
        darshan.read(tmp_path / "log")


@needs_package
@pytest.mark.skipif(not (BUILT / "tidepool").exists(), reason="the command is not built: cargo build --workspace")
def test_a_log_leads_to_a_tuned_configuration(tmp_path: Path) -> None:
    trace, experiment = str(tmp_path / "trace.txt"), str(tmp_path / "experiment.toml")
    assert darshan.main([str(log("examples/example_logs/dxt.darshan")), "--under", "/", "--out", trace]) == 0

    def sim(*words: str) -> Any:  # noqa: ANN401 - JSON
        done = subprocess.run([BUILT / "tidepool", "sim", *words, "--json"], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    made = sim("experiment", "--trace", trace, "--out", experiment)
    assert made["experiment"]["requests"] == len(darshan.read(log("examples/example_logs/dxt.darshan"), ["/"]).requests)
    tuned = sim("tune", experiment, "--vary", "stripe-size=64KiB,1MiB")
    assert tuned["pool"]["options"][:3] == ["--nodes", "4", "--chunk-size"]


class Traced:
    """Stands for the package: one file, and its requests of two modules."""

    def __init__(self, posix: list[dict[str, Any]], mpiio: list[dict[str, Any]]) -> None:
        self.records = {"DXT_POSIX": posix, "DXT_MPIIO": mpiio}

    def log_open(self, _path: str) -> dict[str, Any]:
        return {"handle": self}

    def log_close(self, _handle: object) -> None:
        pass

    def log_get_modules(self, _handle: object) -> list[str]:
        return [module for module, segments in self.records.items() if segments]

    def log_get_name_records(self, _handle: object) -> dict[int, str]:
        return {1: "/scratch/out"}

    def log_get_record(self, _handle: object, module: str, dtype: str) -> dict[str, Any] | None:
        assert dtype == "dict"
        segments, self.records[module] = self.records[module], []
        count = {"write_count": len(segments), "read_count": 0, "write_segments": segments, "read_segments": []}
        return {"id": 1, "rank": 0, **count} if segments else None


@pytest.mark.parametrize("posix", [True, False])
def test_requests_without_an_offset_are_left_out_and_counted(
    posix: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def segment(offset: int) -> dict[str, Any]:
        return {"offset": offset, "length": 4096, "start_time": 0.5}

    log = tmp_path / "job.darshan"
    log.touch()
    mpiio = [segment(-1), segment(8192), segment(-1)]
    backend = Traced([segment(-1), segment(0)] if posix else [], mpiio)
    monkeypatch.setattr(darshan, "_backend", lambda: backend)
    assert darshan.main([str(log)]) == 0
    said = capfd.readouterr()
    assert said.out.splitlines()[1:] == [f"0 0.000000000 write /scratch/out {0 if posix else 8192} 4096"]
    assert f"left out: {1 if posix else 2} requests without an offset, told as -1" in said.err


def test_a_log_of_nothing_else_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "job.darshan"
    log.touch()
    backend = Traced([], [{"offset": -1, "length": 1, "start_time": 0.0}])
    monkeypatch.setattr(darshan, "_backend", lambda: backend)
    with pytest.raises(darshan.LogError, match="1 requests without an offset"):
        darshan.read(log)
