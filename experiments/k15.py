"""K15: the paper's Figure 7: I/O time against the number of applications, by strategy."""

from __future__ import annotations

from harness import Result, Setting
from tiers import STRATEGIES, compare, draw, phases, sweep

__all__ = ["TITLE", "draw", "measure"]
TITLE = "applications: 2 to 8 on shaped tiers, by strategy (S3 Figure 7)"
PROCESSES, BYTES_EACH, STEPS, RATIO = 32, 2_000_000, 3, 0.5
APPLICATIONS = (2, 4, 8)
PAPER = "the paper: ia 2.5 times baseline's performance and 1.5 times hp's (S3 IV-B 3)"


def measure(setting: Setting) -> Result:
    result = Result("applications")
    setting.fewer_repeats(1)
    counts, steps, bytes_each = ((3,), 2, 500_000) if setting.quick else (APPLICATIONS, STEPS, BYTES_EACH)
    result.details.update(processes=PROCESSES, bytes_each=bytes_each, steps=steps, ratio=RATIO, paper=PAPER)
    points = {count: [phases(PROCESSES, bytes_each, steps, RATIO)] * count for count in counts}
    sweep(setting, result, points, STRATEGIES)
    compare(result, (2.2, 1.4), PAPER)
    result.findings.append(result.widest())
    return result
