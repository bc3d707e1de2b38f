"""What the guide and examples/stage show works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from conftest import WORKSPACE, Daemon
from tidepool.stage import DataspaceKind, DataspaceSpec, Stager

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def site(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Dataspaces as on a machine, with three files in `lustre://in`."""
    with Stager(daemon.control) as stager:
        for name in ("lustre", "nvme0"):
            (tmp_path / name).mkdir()
            stager.register_dataspace(DataspaceSpec(f"{name}://", DataspaceKind.LOCAL, str(tmp_path / name)))
    (tmp_path / "lustre" / "in").mkdir()
    for n in range(3):
        (tmp_path / "lustre" / "in" / str(n)).write_text(str(n))
    # Tasks on the user socket are for processes of jobs, which the tests' own is not.
    monkeypatch.setenv("TIDEPOOL_STAGER_SOCKET", str(daemon.control))
    monkeypatch.setenv("TIDEPOOL_STAGER_CONTROL", str(daemon.control))
    return tmp_path


def run(example: str, *arguments: str) -> list[str]:
    program = WORKSPACE / "examples" / "stage" / example
    done = subprocess.run([sys.executable, program, *arguments], capture_output=True, text=True)
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout.splitlines()


def test_the_guide(site: Path) -> None:
    text = (WORKSPACE / "docs" / "guide" / "python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) > 5
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "python.md", "exec"), names)
    assert sorted(os.listdir(site / "nvme0" / "in")) == ["0", "1", "2"]


def test_copy_tree(site: Path) -> None:
    lines = run("copy_tree.py", "lustre://in", "nvme0://in")
    assert lines[-1] == "FINISHED: 3 of 3 bytes, 3 files"
    assert sorted(os.listdir(site / "nvme0" / "in")) == ["0", "1", "2"]


def test_offload(site: Path) -> None:
    assert run("offload.py", "nvme0://out", "2") == ["nvme0://out/step0 800000", "nvme0://out/step1 800000"]
    assert (site / "nvme0" / "out" / "step1").stat().st_size == 800_000


def test_first_of_many(site: Path) -> None:
    lines = run("first_of_many.py", "lustre://in/", "nvme0://", "0", "2", "none")
    assert sorted(line.split(":")[0] for line in lines) == ["failed", "here", "here"]
    assert sorted(os.listdir(site / "nvme0")) == ["0", "2"]


def test_every_example_is_tested() -> None:
    examples = sorted(path.name for path in (WORKSPACE / "examples" / "stage").glob("*.py"))
    assert examples == ["copy_tree.py", "first_of_many.py", "offload.py"]
