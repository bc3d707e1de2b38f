"""B5 (ADA-FS, S0 Figure 5): how users' median absolute errors are distributed, in minutes."""

from __future__ import annotations

import figures
from harness import Result, Setting
from walltimes import AUTOML, LINEAR, REQUEST, Judged, add_distributions, judged, publish, stairs, whats

TITLE = "median absolute error of users: AutoML, linear regression, the request (S0 Figure 5)"
PUBLISHED = {"AutoML, ForHLR II": 21.0, "linear regression, ForHLR II": 43.0, "request, ForHLR II": 186.0}
# The requirement: where users ask badly, they ask for so many times what AutoML is wrong by.
FACTOR = 5.0


def measure(setting: Setting) -> Result:
    result = Result("% of users")
    all_ = judged(setting, ("default", AUTOML, LINEAR, REQUEST))
    add_distributions(result, all_, "min", 60.0)
    publish(result, all_, PUBLISHED, 50, "min")
    for one in all_:
        result.findings += conclude(one)
    return result


def conclude(one: Judged) -> list[str]:
    """The papers' order, and how far the request is off."""
    at = {name: one.at_s(name, 50) / 60 for name in one.predictors}
    told = ", ".join(f"{name} {minutes:.3g}" for name, minutes in at.items())
    order = "as published" if at[AUTOML] < at[LINEAR] < at[REQUEST] else "not the published order"
    found = [f"{one.what}: minutes at half of the users: {told} (published: AutoML 21, linear regression 43, request 186): {order}"]
    for name in ("default", AUTOML):
        if name in at:
            factor = at[REQUEST] / max(at[name], 1 / 60)
            bar = "at least" if factor >= FACTOR else "less than"
            found.append(f"{one.what}: the request is {factor:.1f} times as far off as {name}, {bar} {FACTOR:g} (published: 8.9 for AutoML)")
    return found


def draw(report: dict, rows: list[dict]):
    figure, panels = figures.panels(len(whats(rows)), columns=2)
    for axes, what in zip(panels, whats(rows)):
        stairs(axes, rows, what, log_x=True)
    return figure
