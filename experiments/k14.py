"""K14: the paper's Figure 6: I/O time against the number of steps, by strategy."""

from __future__ import annotations

from harness import Result, Setting
from tiers import STRATEGIES, compare, draw, phases, sweep

__all__ = ["TITLE", "draw", "measure"]
TITLE = "steps: two applications on shaped tiers, by strategy (S3 Figure 6)"
PROCESSES, BYTES_EACH, RATIO = 32, 2_000_000, 0.5
STEPS = (4, 8, 16)
PAPER = "the paper: ia 4 times baseline's performance and twice hp's (S3 IV-B 2)"


def measure(setting: Setting) -> Result:
    result = Result("steps")
    setting.fewer_repeats(1)
    counts, bytes_each = ((2,), 500_000) if setting.quick else (STEPS, BYTES_EACH)
    result.details.update(processes=PROCESSES, bytes_each=bytes_each, ratio=RATIO, applications=2, paper=PAPER)
    sweep(setting, result, {steps: [phases(PROCESSES, bytes_each, steps, RATIO)] * 2 for steps in counts}, STRATEGIES)
    compare(result, (3.5, 1.8), PAPER)
    result.findings.append(result.widest())
    return result
