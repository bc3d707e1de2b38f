"""K15, simulated at the paper's scale: I/O time against the number of applications, by strategy."""

from __future__ import annotations

from harness import Result, Setting
from simtiers import begin, compare, draw, factor, only, point, sensitivity, set_to, sweep, without_links

__all__ = ["TITLE", "draw", "measure"]
TITLE = "simulated: 2 to 8 applications x 32 processes x 1 GB, each on one node, by strategy (S3 Figure 7)"
APPLICATIONS = (2, 3, 4, 5, 6, 7, 8)
PAPER = (2.5, 1.5)


def measure(setting: Setting) -> Result:
    result, simulator, base = begin("applications", setting, "ia 2.5 times baseline's performance and 1.5 times hp's (S3 IV-B 3)")
    # "Each consist 32 processes running on one compute node": one link each.
    points = {count: point(base, count=count, nodes=1) for count in APPLICATIONS}
    compare(result, "", sweep(simulator, result, only(points, setting.quick, (3,))), PAPER)
    free = without_links(base)
    others = only({count: point(free, count=count, nodes=1) for count in (2, 4, 8)}, setting.quick, (2,))
    found = {count: simulator(table) for count, table in others.items()}
    compare(result, ", links left out", found, PAPER)
    told = set_to(base, "schedulers", "links-known", True)
    known = only({count: point(told, count=count, nodes=1) for count in (2, 4, 8)}, setting.quick, (2,))
    gains = {count: factor(simulator(table, ("ia", "model")), "ia", "model") for count, table in known.items()}
    text = ", ".join(f"{gain:.2f} at {count}" for count, gain in gains.items())
    result.findings.append(f"ia takes {text} times as long as model, one link each, where schedulers know what links carry; daemons do not")
    if not setting.quick:
        sensitivity(simulator, result, base, lambda table: point(table, count=4, nodes=1), "4 applications, one link each")
    return result
