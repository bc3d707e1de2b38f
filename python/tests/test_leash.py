"""Tests that are killed leave no stager behind."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

PROGRAM = """
import os, signal, sys
from pathlib import Path
from conftest import Daemon
print(Daemon(Path(sys.argv[1])).process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def runs(pid: int) -> bool:
    try:
        # Whoever inherited it may be slow to bury it.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def test_a_stager_ends_with_the_test_that_started_it(tmp_path: Path) -> None:
    here = Path(__file__).parent
    killed = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, cwd=here)
    assert killed.returncode == -9, killed.stderr
    while runs(int(killed.stdout)):
        time.sleep(0.01)
