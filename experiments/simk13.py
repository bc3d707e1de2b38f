"""K13, simulated at the paper's scale: I/O time against the part of I/O, by strategy."""

from __future__ import annotations

from harness import Result, Setting
from simtiers import begin, compare, draw, only, point, sensitivity, sweep

__all__ = ["TITLE", "draw", "measure"]
TITLE = "simulated: I/O ratio 0.8 to 0.2, two applications x 32 processes x 1 GB, by strategy (S3 Figure 5)"
RATIOS = (0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
PAPER = (4.0, 2.0)


def measure(setting: Setting) -> Result:
    result, simulator, base = begin("I/O ratio", setting, "ia 4 times baseline's performance and twice hp's (S3 IV-B 1)")
    points = {ratio: point(base, ratio=ratio) for ratio in RATIOS}
    compare(result, "", sweep(simulator, result, only(points, setting.quick, (0.5,))), PAPER)
    if not setting.quick:
        sensitivity(simulator, result, base, lambda table: point(table, ratio=0.5), "ratio 0.5")
    return result
