#!/usr/bin/env python3
"""Runs the demonstration's steps in a folder below the working directory.

    steps.py STEPS.json FOLDER

It is started by `tidepool run` inside the pool, so every path it uses is relative.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from demo import run_steps  # noqa: E402  (the folder is no package)


def main() -> int:
    steps = json.loads(Path(sys.argv[1]).read_text())
    os.chdir(sys.argv[2])
    return 0 if run_steps(steps, Path()) is not None else 1


if __name__ == "__main__":
    sys.exit(main())
