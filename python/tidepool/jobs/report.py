"""What an evaluation came to: as text, as JSON, as CSV, and as a page with the papers' figures."""

from __future__ import annotations

import csv
import html
from typing import TYPE_CHECKING, Any

from tidepool.jobs import figures
from tidepool.jobs.evaluate import LEAKS
from tidepool.jobs.protocol import JOBS_OF_USER_MIN

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tidepool.jobs.evaluate import Evaluation, Row
    from tidepool.jobs.methods import Options

AT_USERS = (0.5, 0.6, 0.75, 0.8)
"""Shares of users whose error is told: the papers' and the quartile."""
SUMMARY_HEAD = (
    "log", "split", "predictor", "learns", "judged_jobs", "users",
    *(f"medae_p{share * 100:.0f}_user_seconds" for share in AT_USERS),
    "mean_absolute_error_seconds", "under_share", "pinball_50_seconds", "pinball_90_seconds", "pinball_95_seconds",
    "coverage_90", "coverage_95", "worst_tenth_90", "worst_tenth_95", "took_seconds",
)  # fmt: skip
USERS_HEAD = (
    "log",
    "split",
    "predictor",
    "user",
    "judged_jobs",
    "taught_jobs",
    "medae_seconds",
    "r2_judged",
    "r2_taught",
)
HOURS_TITLE = "Median absolute error in hours, at 50 / 60 / 80 % of the users"
PAPERS = (
    "The papers (ForHLR II, two years): at half of the users a median absolute error of 21 minutes by AutoML, 43 by "
    "linear regression, 186 by the request (S0 Figure 5); at 60 % about 1 h on ForHLR I and 1.4 h on ForHLR II by "
    "AutoML, 7.4 h by the request (S2 Figure 5)."
)
STYLE = (
    "body{font:15px sans-serif;margin:2em;max-width:75em}table{border-collapse:collapse}"
    "td,th{text-align:right;padding:.15em .6em;border-bottom:1px solid #ddd}"
    "td:first-child,th:first-child,td:last-child,th:last-child{text-align:left}"
)


def text(evaluations: Sequence[Evaluation]) -> str:
    """Tables, one for each log, and one of the users' errors with the papers' beside."""
    parts = []
    for one in evaluations:
        parts += ["\n".join([*_lines(one), "errors and losses in minutes"]), _table(_rows(one))]
    return "\n\n".join([*parts, HOURS_TITLE, _table(_hours(evaluations)), PAPERS])


def value(evaluations: Sequence[Evaluation], options: Options) -> dict[str, Any]:
    """All figures."""
    return {
        "what": "jobs-evaluate",
        "seed": options.seed,
        "jobs_that_give_a_user_a_model_min": options.jobs_min,
        "automl": {"seconds": options.automl_seconds, "iterations": options.automl_iterations},
        "judged_jobs_of_a_user_min": JOBS_OF_USER_MIN,
        "logs": [_log_value(one) for one in evaluations],
    }


def write(dir: Path, evaluations: Sequence[Evaluation], value: dict[str, Any]) -> None:
    """Files in a directory, which is made."""
    import json

    dir.mkdir(parents=True, exist_ok=True)
    (dir / "evaluation.json").write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    _csv(dir / "summary.csv", SUMMARY_HEAD, (_summary(one, row) for one in evaluations for row in one.rows))
    _csv(dir / "users.csv", USERS_HEAD, (line for one in evaluations for row in one.rows for line in _users(one, row)))
    drawn = {name: dir / f"{name}.svg" for name in figures.write(dir, evaluations)}
    (dir / "index.html").write_text(_page(evaluations, drawn), encoding="utf-8")


def _split(one: Evaluation) -> str:
    return one.split.kind if one.split.kind == "temporal" else f"random, {LEAKS}"


def _lines(one: Evaluation) -> list[str]:
    users = len(one.rows[0].measures.of_users_s) if one.rows else 0
    teach = one.jobs - len(one.split.judged)
    lines = [
        f"{one.path}: {teach} jobs warm up, {len(one.split.judged)} are judged; "
        f"{users} users with at least {JOBS_OF_USER_MIN} of them",
        f"split: {_split(one)}",
    ]
    return lines + [f"log: {count} {what}" for what, count in one.repairs.items()]


def _minutes(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds / 60:.2f}"


def _percent(share: float) -> str:
    return f"{share * 100:.1f}"


def _worst(row: Row, level: int) -> float:
    """The tenth of the jobs where coverage is furthest from what it should be."""
    wanted = (0.90, 0.95)[level]
    return max(row.measures.covered_tenths[level], key=lambda share: abs(share - wanted))


HEAD = (
    "predictor", "medAE (median user)", "(P75 user)", "mean error", "too short %", "pinball 50", "90", "95",
    "90 % covers %", "worst tenth", "95 % covers %", "worst tenth", "took s", "learns",
)  # fmt: skip


def _rows(one: Evaluation) -> list[list[str]]:
    rows = [list(HEAD)]
    for row in one.rows:
        m = row.measures
        covers = [_percent(m.covered[0]), _percent(_worst(row, 0)), _percent(m.covered[1]), _percent(_worst(row, 1))]
        rows.append(
            [
                row.name,
                _minutes(m.at_user_s(0.5)),
                _minutes(m.at_user_s(0.75)),
                _minutes(m.mean_s),
                _percent(m.under),
                *([_minutes(loss) for loss in m.pinball_s] if row.within else [_minutes(m.pinball_s[0]), "-", "-"]),
                *(covers if row.within else ["-"] * len(covers)),
                f"{row.seconds:.1f}",
                row.learns,
            ]
        )
    return rows


def _hours(evaluations: Sequence[Evaluation]) -> list[list[str]]:
    """S2 Figure 5 as a table: a line for each predictor, columns for each log."""
    names = list(dict.fromkeys(row.name for one in evaluations for row in one.rows))
    table = [["predictor", *(figures.title(one) for one in evaluations)]]
    for name in names:
        cells = []
        for one in evaluations:
            row = next((row for row in one.rows if row.name == name), None)
            at = [row.measures.at_user_s(share) if row else None for share in (0.5, 0.6, 0.8)]
            cells.append(" / ".join("-" if seconds is None else f"{seconds / 3600:.2f}" for seconds in at))
        table.append([name, *cells])
    return table


def _table(rows: list[list[str]]) -> str:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    pad = [str.ljust] + [str.rjust] * len(widths)
    line = ("  ".join(put(cell, width) for put, cell, width in zip(pad, row, widths)) for row in rows)
    return "\n".join(one.rstrip() for one in line)


def _log_value(one: Evaluation) -> dict[str, Any]:
    return {
        "path": str(one.path),
        "repairs": one.repairs,
        "split": _split(one),
        "warm_up_jobs": one.jobs - len(one.split.judged),
        "judged_jobs": len(one.split.judged),
        "predictors": [_row_value(row) for row in one.rows],
    }


def _row_value(row: Row) -> dict[str, Any]:
    m = row.measures
    within = {
        "pinball_seconds": dict(zip(("50", "90", "95"), m.pinball_s)),
        "coverage": dict(zip(("90", "95"), m.covered)),
        "coverage_of_tenths": dict(zip(("90", "95"), m.covered_tenths)),
    }
    return {
        "predictor": row.name,
        "learns": row.learns,
        **{f"medae_p{share * 100:.0f}_user_seconds": m.at_user_s(share) for share in AT_USERS},
        "medae_of_users_seconds": m.of_users_s,
        "mean_absolute_error_seconds": m.mean_s,
        "under_share": m.under,
        **(within if row.within else {"pinball_seconds": {"50": m.pinball_s[0]}}),
        "took_seconds": row.seconds,
        "users": [
            {"user": u.user, "jobs": u.jobs, "taught": u.taught, "medae_seconds": u.medae_s}
            | {"r2_judged": u.r2_judged, "r2_taught": u.r2_taught}
            for u in row.users
        ],
    }


def _summary(one: Evaluation, row: Row) -> list[Any]:
    m = row.measures
    within = [*m.pinball_s[1:], *m.covered, _worst(row, 0), _worst(row, 1)]
    return [
        one.name,
        _split(one),
        row.name,
        row.learns,
        m.jobs,
        len(m.of_users_s),
        *(m.at_user_s(share) for share in AT_USERS),
        m.mean_s,
        m.under,
        m.pinball_s[0],
        *(within if row.within else [None] * len(within)),
        round(row.seconds, 3),
    ]


def _users(one: Evaluation, row: Row) -> list[list[Any]]:
    return [
        [one.name, _split(one), row.name, u.user, u.jobs, u.taught, u.medae_s, u.r2_judged, u.r2_taught]
        for u in row.users
    ]


def _csv(path: Path, head: Sequence[str], rows: Any) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)


def _page(evaluations: Sequence[Evaluation], drawn: dict[str, Path]) -> str:
    parts = [f"<p>{html.escape(PAPERS)}</p>"]
    for name, path in drawn.items():
        parts.append(f"<h2>{html.escape(figures.TITLES[name])}</h2>\n{_inline(path)}")
    parts.append(f"<h2>{HOURS_TITLE}</h2>")
    parts.append(_html_table(_hours(evaluations)))
    for one in evaluations:
        parts.append(f"<h2>{html.escape(one.name)}</h2>")
        parts += [f"<p>{html.escape(line)}</p>" for line in _lines(one)]
        parts.append("<p>Errors and losses in minutes.</p>")
        parts.append(_html_table(_rows(one)))
        parts.append("<ul>" + "".join(f"<li>{row.name}: {html.escape(row.about)}</li>" for row in one.rows) + "</ul>")
    title = "Run times predicted"
    return (
        f"<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>{title}</title>"
        f"<style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _inline(path: Path) -> str:
    """The picture itself, without what only a file of its own has."""
    picture = path.read_text(encoding="utf-8")
    return picture[picture.index("<svg") :]


def _html_table(rows: list[list[str]]) -> str:
    lines = []
    for number, row in enumerate(rows):
        tag = "td" if number else "th"
        lines.append("<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>")
    return "<table>" + "\n".join(lines) + "</table>"
