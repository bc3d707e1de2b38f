"""K13: the paper's Figure 5: I/O time against the part of I/O in an application's time, by strategy."""

from __future__ import annotations

from harness import Result, Setting
from tiers import STRATEGIES, compare, draw, phases, sweep

__all__ = ["TITLE", "draw", "measure"]
TITLE = "I/O ratio: two applications on shaped tiers, by strategy (S3 Figure 5)"
PROCESSES, BYTES_EACH, STEPS = 32, 3_000_000, 5
RATIOS = (0.8, 0.6, 0.4, 0.2)
PAPER = "the paper: ia 4 times baseline's performance and twice hp's (S3 IV-B 1)"


def measure(setting: Setting) -> Result:
    result = Result("I/O ratio")
    setting.fewer_repeats(1)
    ratios, steps, bytes_each = ((0.5,), 2, 500_000) if setting.quick else (RATIOS, STEPS, BYTES_EACH)
    result.details.update(processes=PROCESSES, bytes_each=bytes_each, steps=steps, applications=2, paper=PAPER)
    sweep(setting, result, {ratio: [phases(PROCESSES, bytes_each, steps, ratio)] * 2 for ratio in ratios}, STRATEGIES)
    compare(result, (3.5, 1.8), PAPER)
    result.findings.append(result.widest())
    return result
