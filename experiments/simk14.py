"""K14, simulated at the paper's scale: I/O time against the number of steps, by strategy."""

from __future__ import annotations

from harness import Result, Setting
from simtiers import begin, compare, draw, only, point, sweep

__all__ = ["TITLE", "draw", "measure"]
TITLE = "simulated: 4 to 32 steps, two applications x 32 processes x 1 GB, by strategy (S3 Figure 6)"
STEPS = (4, 8, 16, 32)
PAPER = (4.0, 2.0)


def measure(setting: Setting) -> Result:
    result, simulator, base = begin("steps", setting, "ia 4 times baseline's performance and twice hp's (S3 IV-B 2)")
    points = {steps: point(base, steps=steps) for steps in STEPS}
    compare(result, "", sweep(simulator, result, only(points, setting.quick, (4,))), PAPER)
    return result
