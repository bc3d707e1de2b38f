"""A stager of its own for each test: the real program, in a directory of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import jobs_log
from tidepool.stage import Stager

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

WORKSPACE = Path(__file__).resolve().parents[2]
BUILT = Path(os.environ.get("TIDEPOOL_BUILT") or WORKSPACE / "target" / "debug")

SLOW = 64 << 10
"""Bytes per second of a task that is to run while a test looks at it."""


def leash(pid: int) -> subprocess.Popen[str]:
    """Kills a process when this one ends, whatever ends it: its input ends then."""
    return subprocess.Popen(
        ["xargs", "kill", "-9", str(pid)], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


class Daemon:
    """A stager with dataspaces `a://` and `b://`, directories of these names below `dir`."""

    def __init__(self, dir: Path) -> None:
        self.dir = dir
        text = ""
        for name in ("a", "b"):
            (dir / name).mkdir()
            text += f'[[dataspace]]\nname = "{name}://"\nkind = "local"\nmount = "{dir / name}"\n'
        (dir / "stager.toml").write_text(text)
        self.control = dir / "run" / "control.socket"
        self.user = dir / "run" / "user.socket"
        self.start()

    def start(self) -> None:
        program: list[str | Path] = [
            BUILT / "tidepool-staged",
            "--config",
            self.dir / "stager.toml",
            "--dir",
            self.dir / "run",
        ]
        self.process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        self.leash = leash(self.process.pid)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "ready" in line, f"the stager did not start: {line!r}"

    def kill(self) -> None:
        # First: the number may soon be another process's.
        self.leash.kill()
        self.leash.communicate()
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def python(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A program of its own; elsewhere, so that it finds the installed package and not the one in the sources."""
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, cwd="/")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path)
    yield daemon
    daemon.kill()


@pytest.fixture
def stager(daemon: Daemon) -> Iterator[Stager]:
    with Stager(daemon.control) as stager:
        yield stager


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of jobs, made up."""
    return jobs_log.write(tmp_path_factory.mktemp("logs") / "made-up.swf", jobs_log.lines(jobs_log.JOBS))


@pytest.fixture
def log(path: Path) -> pd.DataFrame:
    """The same as a data frame."""
    # Only its tests need what the extra `jobs` brings.
    from tidepool import jobs

    return jobs.read(path)
