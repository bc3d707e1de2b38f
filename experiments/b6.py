"""B6 (ADA-FS, S2 Figure 5): the same distribution in hours, at 50, 60 and 80 % of the users."""

from __future__ import annotations

import figures
from harness import Result, Setting
from walltimes import AUTOML, REQUEST, add_distributions, judged, publish, stairs, whats

TITLE = "median absolute error of users in hours (S2 Figure 5)"
PUBLISHED = {"AutoML, ForHLR I": 1.0, "AutoML, ForHLR II": 1.4, "request": 7.4}
SHARES = (50, 60, 80)
# Further to the right there are few users.
HOURS_MAX = 12


def measure(setting: Setting) -> Result:
    result = Result("% of users")
    all_ = judged(setting, ("default", AUTOML, REQUEST))
    add_distributions(result, all_, "h", 3600.0)
    publish(result, all_, PUBLISHED, 60, "h")
    for one in all_:
        for name in one.predictors:
            at = " / ".join(f"{one.at_s(name, share) / 3600:.2f}" for share in SHARES)
            result.findings.append(f"{one.what}, {name}: {at} hours at {' / '.join(map(str, SHARES))} % of the users")
    return result


def draw(report: dict, rows: list[dict]):
    figure, panels = figures.panels(len(whats(rows)), columns=2)
    for axes, what in zip(panels, whats(rows)):
        stairs(axes, rows, what, log_x=False)
        axes.set_xlim(0, HOURS_MAX)
    return figure
