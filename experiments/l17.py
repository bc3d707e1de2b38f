"""L17 (HPIS3, Figure 6): the simulator's own speed on 2048 clients and 1024 servers, by scheduler and threads."""

from __future__ import annotations

import json
import os
import shutil
import sys

import figures
from harness import Failed, Result, Setting

TITLE = "the simulator's own speed: 2048 clients, 1024 servers (HPIS3, Figure 6)"
MODEL_SIZE = ("--clients", "2048", "--servers", "1024", "--reads", "16")
QUICK_SIZE = ("--clients", "256", "--servers", "128", "--reads", "2")
# From the text: the least and the greatest rate over 2 to 256 processes; running times are in the figure only.
PUBLISHED = {2: 10082.1, 256: 65438.4}
RATE, TIME = "events/s", "running time"
RANKS = (1, 2)


def measure(setting: Setting) -> Result:
    setting.fewer_repeats(2)
    result = Result("threads, or MPI ranks")
    size = QUICK_SIZE if setting.quick else MODEL_SIZE
    cores = len(os.sched_getaffinity(0))
    threads = [1, *(n for n in (2, 4, 8, 16, 32, 64) if n <= cores)]
    runs = {("sequential", 1): ["--scheduler", "sequential"]}
    for scheduler in ("conservative", "optimistic"):
        runs |= {(scheduler, n): ["--scheduler", scheduler, "--threads", str(n)] for n in threads}
    commands = {key: [str(setting.command), "sim", "scale", *size, *more, "--json"] for key, more in runs.items()}
    commands |= over_mpi(setting, size, cores)
    reports: dict[tuple[str, int], list[dict]] = {}
    # All of them in each repeat, so that what else happens on the machine meets all alike.
    for repeat in range(setting.repeats):
        for key, command in commands.items():
            setting.note(command)
            print(f"  {repeat + 1}: {setting.scrub(command)}", file=sys.stderr)
            reports.setdefault(key, []).append(last_json(setting.capture(command, mpi_environment()))["result"])
    traces = {report["trace"] for found in reports.values() for report in found}
    events = next(iter(reports.values()))[0]["events"]
    for (name, count), found in reports.items():
        result.add(RATE, name, count, "events/s", [report["events"] / report["wall_seconds"] for report in found])
        result.add(TIME, name, count, "s", [report["wall_seconds"] for report in found])
        rates = [report["events"] / report["wall_seconds"] for report in found]
        result.findings.append(
            f"{name}, {count}: {sum(rates) / len(rates):,.0f} events/s ({min(rates):,.0f} to {max(rates):,.0f}), "
            f"{sum(r['wall_seconds'] for r in found) / len(found):.2f} s"
        )
    for processes, rate in PUBLISHED.items():
        result.add(RATE, "HPIS3 on 32 nodes", processes, "events/s", [rate], "published")
    result.findings.append(
        f"{events:,} events; {'all runs have the same trace' if len(traces) == 1 else 'TRACES DIFFER: ' + ', '.join(sorted(traces))}"
    )
    result.findings.append(
        "published: 10,082 to 65,438 events/s with 2 to 256 processes on 32 nodes (at which number is which, the text does not say: "
        "drawn at 2 and 256); its events are others than ours, so rates do not compare as such"
    )
    result.findings.append(result.widest())
    return result


def over_mpi(setting: Setting, size: tuple[str, ...], cores: int) -> dict[tuple[str, int], list[str]]:
    tidepool = [str(setting.command), "sim"]
    tiny = ["mpirun.openmpi", "-n", "1", *tidepool, "phold", "--mpi", "--processes", "2", "--end", "1us", "--json"]
    if not shutil.which(tiny[0]):
        setting.steps.add("no MPI ranks: there is no mpirun.openmpi")
        return {}
    try:
        setting.capture(tiny, mpi_environment())
    except Failed:
        setting.steps.add("no MPI ranks: this build cannot run over them; its message is above")
        return {}
    return {
        (f"{scheduler}, MPI ranks", n): [
            *("mpirun.openmpi", "-n", str(n), *tidepool, "scale", *size, "--mpi", "--scheduler", scheduler, "--json")
        ]
        for scheduler in ("conservative", "optimistic")
        for n in RANKS
        if n <= cores
    }


def mpi_environment() -> dict[str, str]:
    """Open MPI refuses root otherwise, which a test's container is."""
    return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def last_json(text: str) -> dict:
    return json.loads(text.strip().splitlines()[-1])


def draw(report: dict, rows: list[dict]):
    figure, axes = figures.panels(2)
    for one, what in zip(axes, (RATE, TIME)):
        figures.lines(one, rows, what, report["x_label"], log_x=True, log_y=True)
    figures.legend_below(figure, axes, columns=3)
    return figure
