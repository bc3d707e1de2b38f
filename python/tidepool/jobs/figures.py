"""The papers' figures of wall-time prediction, drawn from evaluations with the papers' numbers beside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidepool.jobs._needs import need

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tidepool.jobs.evaluate import Evaluation, Row

TITLES = {
    "fig4-r2": "R2 on jobs that taught against R2 on judged jobs, a point for each user (S0 Figure 4)",
    "fig5-minutes": "Median absolute error of users in minutes (S0 Figure 5)",
    "fig5-hours": "Median absolute error of users in hours (S2 Figure 5)",
}
COLOURS = ("#0072b2", "#cc3311", "#009e73", "#b36b00", "#7a4fa3", "#555555", "#2f9fb5")
DRAWN = ("default", "automl", "automl-history", "lgbm", "linear-batch", "linear", "request")
"""Those in the distributions, as far as they are there; of both linear ones the first."""
SCATTERED = ("automl", "linear-batch", "automl-history", "lgbm-user")
"""Models of users in the order in which they are drawn, two at most: more hide each other."""
SCATTERED_MAX = 2
PAPER_MINUTES: dict[str, float] = {"AutoML": 21, "linear regression": 43, "request": 186}
"""S0 Figure 5, at half of ForHLR II's users."""
PAPER_HOURS = {"AutoML, ForHLR I": 1.0, "AutoML, ForHLR II": 1.4, "request": 7.4}
"""S2 Figure 5, at 60 % of the users."""
WORDS = {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.5}
"""Behind words on lines."""
IN_FRONT = 5
R2_LEAST = -1.0
"""Worse is drawn at the edge, and counted."""


def write(dir: Path, evaluations: Sequence[Evaluation]) -> list[str]:
    """Draws what there are numbers for, each as SVG and PNG; which these are."""
    figure = need("matplotlib.figure", "jobs", "figures")
    matplotlib = need("matplotlib", "jobs", "figures")
    drawn = []
    # The same bytes each time.
    with matplotlib.rc_context({"svg.hashsalt": "tidepool", "font.size": 9}):
        for name, draw in (("fig4-r2", _r2), ("fig5-minutes", _minutes), ("fig5-hours", _hours)):
            picture = draw(figure.Figure, evaluations)
            if picture is not None:
                picture.savefig(dir / f"{name}.svg", metadata={"Date": None})
                picture.savefig(dir / f"{name}.png", dpi=110)
                drawn.append(name)
    return drawn


def title(one: Evaluation) -> str:
    """Of a log's panel or column."""
    return one.name if one.split.kind == "temporal" else f"{one.name} (random split: leaks the future)"


def _panels(make: Any, evaluations: Sequence[Evaluation], height: float) -> tuple[Any, list[Any]]:
    count = len(evaluations)
    picture = make(figsize=(max(5.4 * count, 6.5), height), layout="constrained")
    panels = list(picture.subplots(1, count, squeeze=False).flat)
    for panel, one in zip(panels, evaluations):
        panel.set_title(title(one), fontsize=10)
        panel.grid(alpha=0.3)
    return picture, panels


def _r2(make: Any, evaluations: Sequence[Evaluation]) -> Any:
    """Each model is the one that the first training made."""
    if not any(_scattered(one) for one in evaluations):
        return None
    picture, panels = _panels(make, evaluations, 5.2)
    for panel, one in zip(panels, evaluations):
        for number, row in enumerate(_scattered(one)):
            points = _points(row)
            below = sum(min(x, y) < R2_LEAST for x, y in points)
            good = sum(min(x, y) > 0.5 for x, y in points)
            label = f"{row.name}: {len(points)} users, {good} with both above 0.5, {below} at the edge"
            xs = [max(x, R2_LEAST) for x, _ in points]
            ys = [max(y, R2_LEAST) for _, y in points]
            panel.scatter(xs, ys, s=14, alpha=0.7, color=COLOURS[number], label=label)
        panel.set_xlim(R2_LEAST - 0.05, 1.05)
        panel.set_ylim(R2_LEAST - 0.05, 1.05)
        panel.set_xlabel("R2 on the jobs that taught")
        panel.set_ylabel("R2 on the judged jobs")
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), fontsize=8, frameon=False)
    return picture


def _scattered(one: Evaluation) -> list[Row]:
    rows = [row for name in SCATTERED for row in one.rows if row.name == name and _points(row)]
    return rows[:SCATTERED_MAX]


def _points(row: Row) -> list[tuple[float, float]]:
    return [(u.r2_taught, u.r2_judged) for u in row.users if u.r2_taught is not None and u.r2_judged is not None]


def _shown(one: Evaluation) -> list[Row]:
    names = {row.name for row in one.rows}
    wanted = [name for name in DRAWN if name in names and not (name == "linear" and "linear-batch" in names)]
    rows = [row for row in one.rows if row.name in wanted] or one.rows[: len(COLOURS)]
    return sorted(rows, key=lambda row: wanted.index(row.name) if row.name in wanted else 0)


@dataclass(frozen=True)
class Scale:
    """How a distribution is drawn."""

    unit_s: float
    unit: str
    at: float
    """The share of users at which the papers give numbers."""
    paper: dict[str, float]
    words_up: int
    """Whether they are written above the points, 1, or below, -1."""
    limits: tuple[float, float]
    log: bool


def _stairs(panel: Any, one: Evaluation, scale: Scale) -> None:
    unit_s, unit = scale.unit_s, scale.unit
    for number, row in enumerate(_shown(one)):
        errors = [error / unit_s for error in row.measures.of_users_s]
        if errors:
            middle = row.measures.at_user_s(0.5) or 0.0
            label = f"{row.name}: {middle / unit_s:.3g} {unit} at 50 %"
            shares = [(rank + 1) / len(errors) for rank in range(len(errors))]
            panel.step(errors, shares, where="post", color=COLOURS[number % len(COLOURS)], label=label)
    panel.set_ylim(0, 1)
    panel.set_ylabel("share of users")
    panel.legend(loc="lower right", fontsize=8)


def _distributions(make: Any, evaluations: Sequence[Evaluation], scale: Scale) -> Any:
    picture, panels = _panels(make, evaluations, 4.4)
    for panel, one in zip(panels, evaluations):
        for number, (who, error) in enumerate(scale.paper.items()):
            panel.plot([error], [scale.at], "kx", zorder=IN_FRONT)
            words, beside = f"{who} {error:g} (paper)", (4, scale.words_up * (8 + 10 * (number % 2)))
            style = {"fontsize": 7, "bbox": WORDS, "zorder": IN_FRONT}
            panel.annotate(words, (error, scale.at), beside, textcoords="offset points", **style)
        _stairs(panel, one, scale)
        panel.set_xscale("log" if scale.log else "linear")
        panel.set_xlim(scale.limits)
        panel.set_xlabel(f"median absolute error, {scale.unit}")
    return picture


def _minutes(make: Any, evaluations: Sequence[Evaluation]) -> Any:
    return _distributions(make, evaluations, Scale(60.0, "min", 0.5, PAPER_MINUTES, 1, (0.05, 6000), True))


def _hours(make: Any, evaluations: Sequence[Evaluation]) -> Any:
    return _distributions(make, evaluations, Scale(3600.0, "h", 0.6, PAPER_HOURS, -1, (0, 12), False))
