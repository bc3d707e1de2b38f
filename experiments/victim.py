"""WANTS 19: a small application beside one that writes all the time: how much slower it is, by strategy."""

from __future__ import annotations

import statistics
import sys
from concurrent.futures import ThreadPoolExecutor

from harness import Result, Setting
from tiers import App, Lane, at_once, draw

__all__ = ["TITLE", "draw", "measure"]
TITLE = "a victim beside an aggressor on shaped tiers, by strategy"
STRATEGIES = ("baseline", "hp", "ia", "fcfs", "fair")
VICTIM_PROCESSES, VICTIM_BYTES, COMPUTE_SECONDS = 8, 4_000_000, 5
AGGRESSOR_PROCESSES, AGGRESSOR_BYTES = 64, 4_000_000
BAR = 1.2


def victim(steps: int, scale: int) -> App:
    """It computes first: the aggressor is at it when the victim writes."""
    words = ["phases", "--bytes", str(VICTIM_BYTES // scale), "--steps", str(steps)]
    return App([*words, "--compute-seconds", str(COMPUTE_SECONDS / scale)], VICTIM_PROCESSES)


def aggressor(steps: int, scale: int) -> App:
    words = ["phases", "--bytes", str(AGGRESSOR_BYTES // scale), "--steps", str(steps), "--compute-seconds", "0.01"]
    return App(words, AGGRESSOR_PROCESSES)


def slowdown(setting: Setting, strategy: str, steps: int, beside: int, scale: int) -> float:
    """How many times as long the victim's I/O takes beside the aggressor as alone."""
    with Lane(setting, strategy, 1, ("--no-local",)) as lane:
        alone = lane.outcome([victim(steps, scale)]).mean_step()
    with Lane(setting, strategy, 2, ("--no-local",)) as lane:
        both = lane.outcome([victim(steps, scale), aggressor(beside, scale)])
    found = both.io[0] / both.steps[0] / alone
    print(f"  {strategy}: alone {alone:.2f} s a step, {found:.2f} times as long", file=sys.stderr)
    return found


def measure(setting: Setting) -> Result:
    result = Result("strategy")
    setting.fewer_repeats(1)
    steps, scale = (2, 8) if setting.quick else (10, 1)
    # It outlasts the victim everywhere.
    beside = 4 if setting.quick else 14
    result.details.update(victim_processes=VICTIM_PROCESSES, aggressor_processes=AGGRESSOR_PROCESSES, steps=steps)
    with ThreadPoolExecutor(at_once(VICTIM_PROCESSES + AGGRESSOR_PROCESSES)) as threads:
        one = lambda strategy: slowdown(setting, strategy, steps, beside, scale)  # noqa: E731
        rounds = [list(threads.map(one, STRATEGIES)) for _ in range(setting.repeats)]
    for number, strategy in enumerate(STRATEGIES):
        slowdowns = [found[number] for found in rounds]
        result.add("slowdown of the victim", strategy, number, "times", slowdowns)
        verdict = f"bar {BAR:g} {'met' if max(slowdowns) < BAR else 'NOT met'}" if strategy == "fair" else "to compare"
        result.findings.append(f"{strategy}: the victim's I/O takes {statistics.median(slowdowns):.2f} times as long as alone; {verdict}")
    result.model = "the bandwidths of both tiers are shaped (experiments/shapes/ssd.toml, hdd.toml): not real storage"
    return result
