"""B4 (ADA-FS, S0 Figure 4): R2 of each user's model on the jobs that taught against the judged ones."""

from __future__ import annotations

import figures
from harness import Result, Setting
from walltimes import AUTOML, ITERATIONS, LINEAR, judged, whats

TITLE = "R2 of users' models on the jobs that taught against judged ones (S0 Figure 4)"
# Above it on both, a model says something of a user's jobs.
GOOD = 0.5
# What is worse is drawn at the edge.
LEAST = -1.0


def measure(setting: Setting) -> Result:
    result = Result("R2 on the jobs that taught")
    result.model = f"AutoML tries {ITERATIONS} models for each user with at least 20 jobs (2 in a quick run); linear regression has no choice"
    for one in judged(setting, (AUTOML, LINEAR)):
        for name, row in one.predictors.items():
            users = [user for user in row["users"] if None not in (user["r2_taught"], user["r2_judged"])]
            points = [(user["r2_taught"], user["r2_judged"]) for user in users]
            for taught, on_judged in points:
                result.add(one.what, name, taught, "R2", [on_judged])
            good = sum(min(point) > GOOD for point in points)
            only_taught = sum(taught > GOOD >= on_judged for taught, on_judged in points)
            result.findings.append(
                f"{one.what}, {name}: of {len(points)} users with a model {good} have an R2 above {GOOD} on both, "
                f"{only_taught} on the jobs that taught only"
            )
    return result


def draw(report: dict, rows: list[dict]):
    figure, panels = figures.panels(len(whats(rows)), columns=2)
    for axes, what in zip(panels, whats(rows)):
        chosen = [row for row in rows if row["what"] == what]
        for number, (name, kind) in enumerate(figures.series_of(chosen)):
            points = [(max(r["x"], LEAST), max(r["mean"], LEAST)) for r in chosen if r["series"] == name]
            style = {"s": 14, "alpha": 0.7, "color": figures.COLORS[number], "label": figures.label(name, kind)}
            axes.scatter([x for x, _ in points], [y for _, y in points], **style)
        axes.set_title(what, fontsize=9)
        axes.set_xlim(LEAST - 0.05, 1.05)
        axes.set_ylim(LEAST - 0.05, 1.05)
        axes.set_xticks([-1, -0.5, 0, 0.5, 1])
        axes.set_xlabel(f"{report['x_label']} (worse than {LEAST:g}: at the edge)")
        axes.set_ylabel("R2 on the judged jobs")
        axes.grid(True, alpha=0.3)
        axes.legend(loc="lower right", fontsize=7)
    return figure
