"""F19: what daemons cost when nobody uses them, and whether a limit of cores holds under load."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import figures
from harness import Pool, Result, Setting, join_cores, pick

TITLE = "idle daemons: processor time and memory; limit of cores"
CPU_PERCENT_MAX = 1.0
MEMORY_MB_MAX = 100.0
# A sample may lie over the limit by what its clock cannot tell: times of other processes come in steps of 10 ms.
CORES_SLACK = 0.05
SETTLE_SECONDS = 1.0

MAKE_FILES = """
import os, sys
for n in range(int(sys.argv[1])):
    os.close(os.open(f"file.{n}", os.O_CREAT | os.O_WRONLY))
"""


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise KeyError(f"no VmRSS of {pid}")


def watch(pids: list[int], seconds: float) -> tuple[list[float], list[float]]:
    """Percent of a core, and resident megabytes, of each process."""
    time.sleep(SETTLE_SECONDS)
    before, began = [cpu_seconds(pid) for pid in pids], time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - began
    used = [100 * (cpu_seconds(pid) - then) / passed for pid, then in zip(pids, before)]
    return used, [resident_mb(pid) for pid in pids]


def measure(setting: Setting) -> Result:
    # Only daemons are looked at.
    setting.pinned = None
    seconds, counts, files = (5, [1, 2], 5_000) if setting.quick else (60, [1, 2, 4, 8], 100_000)
    result = Result("daemons on this machine")
    result.details["seconds_watched"] = seconds
    for count in counts:
        with Pool(setting, setting.memory, count) as pool:
            pids = [daemon["pid"] for daemon in pool.status()]
            note(result, "after the start", count, *watch(pids, seconds))
            pool.exec(
                sys.executable, "-c", f"import os; os.chdir(os.environ['TIDEPOOL_DIR'])\n{MAKE_FILES}", str(files)
            )
            note(result, f"with {files:,} files", count, *watch(pids, seconds))
    verdict(result)
    limits(setting, result)
    return result


def note(result: Result, series: str, count: int, cpu: list[float], memory: list[float]) -> None:
    result.add("processor time, idle", series, count, "% of a core, each daemon", cpu)
    result.add("resident memory, idle", series, count, "MB, each daemon", memory)


def verdict(result: Result) -> None:
    for what, limit, unit in (
        ("processor time, idle", CPU_PERCENT_MAX, "% of a core"),
        ("resident memory, idle", MEMORY_MB_MAX, "MB"),
    ):
        worst = max(value for row in result.rows if row.what == what for value in row.values)
        holds = "below" if worst < limit else "NOT below"
        result.findings.append(
            f"{what}: at most {worst:.2f} {unit} for one daemon, {holds} the {limit:g} {unit} asked for"
        )


def limits(setting: Setting, result: Result) -> None:
    """Cores that one daemon uses while as many processes as possible create, stat and remove files."""
    if not setting.has_switch("--daemon-cores"):
        result.findings.append("limit of cores not measured: this build of tidepool has no --daemon-cores")
        return
    cores = sorted(os.sched_getaffinity(0))
    files = "3000" if setting.quick else "100000"
    for count in sorted({1, max(1, len(cores) // 2), len(cores)}):
        samples = setting.bench(
            "md",
            setting.memory,
            1,
            "--procs",
            str(2 * len(cores)),
            "--files",
            files,
            "--daemon-cores",
            join_cores(cores[:count]),
            repeats=3,
        )
        used = [s.daemon_cpu / s.seconds for s in pick(samples, side="pool", phase="create")]
        result.add("cores used under load", "one daemon creating files", count, "cores", used)
        holds = "holds" if max(used) <= count + CORES_SLACK else "does NOT hold"
        result.findings.append(f"limit of {count} core(s) {holds}: at most {max(used):.2f} used in {len(used)} samples")


def draw(report: dict, rows: list[dict]):
    whats = list(dict.fromkeys(row["what"] for row in rows))
    figure, axes = figures.panels(len(whats))
    for one, what in zip(axes, whats):
        loaded = what == "cores used under load"
        figures.lines(one, rows, what, "cores allowed" if loaded else report["x_label"])
        if loaded:
            most = max(row["x"] for row in rows if row["what"] == what)
            one.plot([1, most], [1, most], color="#aa0000", linewidth=1, linestyle=(0, (4, 3)), label="limit")
            one.set_ylim(top=1.15 * most)
        else:
            value = CPU_PERCENT_MAX if "processor" in what else MEMORY_MB_MAX
            figures.limit(one, value, "limit")
        one.legend(fontsize=8)
    return figure
