"""What experiments on tiers share: applications, each in a pool of its own, on a shaped burst buffer and a shaped PFS.

Strategies are tried side by side, each on shared storage of its own: shaped storage is slow because everybody sleeps, so that
they do not get in each other's way. That this holds is looked at: a run tells which part of the processors was used.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import figures
from harness import Failed, Result, Setting

SHAPES = Path(__file__).resolve().parent / "shapes"
BURST, PFS = SHAPES / "ssd.toml", SHAPES / "hdd.toml"
# Of the shapes, in bytes/s: what 32 processes have of the PFS alone, and its peak.
PFS_ALONE, PFS_PEAK = 21_500_000, 24_500_000
STRATEGIES = ("baseline", "hp", "ia", "fcfs", "model")
# With 1,280 two processors were busy all the time, and turns were passed on late; with 640 `ia` took 3 % longer than alone.
PROCESSES_AT_ONCE_MAX = 256
FLUSHED_SECONDS_MAX = 600
# Applications begin together, when the processes of all strategies side by side have been started: those of one that begins later
# meet the others less, and writers beside whom others start are slower.
START_SECONDS, START_SECONDS_QUICK = 15.0, 10.0


@dataclass
class App:
    """Words of `tidepool workload run`, and how many processes that are."""

    words: list[str]
    processes: int


@dataclass
class Outcome:
    """What a set of applications took under one strategy, in seconds."""

    strategy: str
    # Of each application: the sum over steps of its slowest process.
    io: list[float]
    steps: list[int]
    wall: list[float]
    # From the start until everything lay on the PFS.
    flushed: float
    written: int

    def mean_step(self) -> float:
        return statistics.fmean(io / steps for io, steps in zip(self.io, self.steps))

    def slowest_step(self) -> float:
        return max(io / steps for io, steps in zip(self.io, self.steps))

    def pfs_used(self) -> float:
        """Part of what the PFS could have taken in that time."""
        return self.written / (PFS_PEAK * self.flushed)


class Lane:
    """Pools of one strategy on shared storage of their own."""

    def __init__(self, setting: Setting, strategy: str, count: int, switches: tuple[str, ...] = ()) -> None:
        self.setting, self.strategy, self.switches = setting, strategy, switches
        self.dir = Path(tempfile.mkdtemp(prefix="tidepool-tiers-", dir=setting.memory.path))
        self.names = [f"{strategy}-{n}" for n in range(count)]
        self.environment = setting.environment() | {"TIDEPOOL_RUNTIME": str(self.dir / "rt")}

    def run(self, *words: str) -> str:
        done = subprocess.run(
            [str(self.setting.command), *words], env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise Failed(f"'{self.setting.scrub(list(words))}' ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def __enter__(self) -> Lane:
        for part in ("burst", "pfs"):
            (self.dir / part).mkdir()
        for name in self.names:
            (self.dir / name).mkdir()
            words = ["pool", "start", "--name", name, "--local", "--nodes", "1", "--store", str(self.dir / name)]
            words += ["--burst", str(self.dir / "burst"), "--pfs", str(self.dir / "pfs"), "--strategy", self.strategy]
            words += ["--shape-burst", str(BURST), "--shape-pfs", str(PFS), "--client", "preload", *self.switches]
            self.setting.note(["tidepool", *(w.replace(str(self.dir), "LANE") for w in words)])
            self.run(*words)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for name in self.names:
                self.run("pool", "stop", "--pool", name)
        finally:
            shutil.rmtree(self.dir, ignore_errors=True)

    def counters(self, name: str) -> dict[str, int]:
        status = json.loads(self.run("pool", "status", "--pool", name, "--json"))
        total: dict[str, int] = {}
        for daemon in status["daemons"]:
            for key, value in daemon["counters"].items():
                total[key] = total.get(key, 0) + value
        return total

    def app(self, name: str, app: App, start_at: float) -> dict:
        words = ["workload", "run", *app.words, "--processes", str(app.processes), "--transfer", "64KiB", "--keep"]
        words += ["--pool", name, "--client", "preload", "--json"]
        self.setting.note(["tidepool", *words, "/w"])
        return json.loads(self.run(*words, "--start-at", f"{start_at:.3f}", "/w"))["applications"][0]

    def outcome(self, apps: list[App]) -> Outcome:
        """All applications at once, and then until everything is on the PFS."""
        start = START_SECONDS_QUICK if self.setting.quick else START_SECONDS
        began, start_at = time.monotonic() + start, [time.time() + start] * len(apps)
        with ThreadPoolExecutor(len(apps)) as threads:
            reports = list(threads.map(self.app, self.names, apps, start_at))
        while any(self.dirty(name) for name in self.names):
            if time.monotonic() - began > FLUSHED_SECONDS_MAX:
                raise Failed(f"{self.strategy}: data are still not flushed after {FLUSHED_SECONDS_MAX} s")
            time.sleep(0.2)
        flushed = time.monotonic() - began
        totals = [report["totals"] for report in reports]
        steps = [sum(1 for phase in report["phases"] if phase["bytes_written"] or phase["bytes_read"]) for report in reports]
        io = [total["io_seconds"] for total in totals]
        wall = [total["wall_seconds"] for total in totals]
        return Outcome(self.strategy, io, steps, wall, flushed, sum(total["bytes_written"] for total in totals))

    def dirty(self, name: str) -> int:
        counters = self.counters(name)
        return counters["tier_local_bytes"] + counters["tier_burst_bytes"]


def at_once(processes: int) -> int:
    """How many strategies the machine bears side by side, where each has so many processes."""
    return max(1, PROCESSES_AT_ONCE_MAX // processes)


def side_by_side(setting: Setting, strategies, apps: list[App], switches: tuple[str, ...] = ()) -> list[Outcome]:
    """Each strategy once; as many at the same time as the machine bears."""

    def one(strategy: str) -> Outcome:
        with Lane(setting, strategy, len(apps), switches) as lane:
            return lane.outcome(apps)

    before = processor_times()
    with ThreadPoolExecutor(min(at_once(sum(app.processes for app in apps)), len(strategies))) as threads:
        outcomes = list(threads.map(one, strategies))
    spent = [now - then for now, then in zip(processor_times(), before)]
    setting.cpu_used = 1 - spent[IDLE] / sum(spent)
    return outcomes


# Of /proc/stat: idle and waiting for devices are the fourth and the fifth number.
IDLE = 0


def processor_times() -> tuple[int, int]:
    """Of all processors since the system was started: idle, and not."""
    numbers = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    idle = numbers[3] + numbers[4]
    return idle, sum(numbers) - idle


def phases(processes: int, bytes_each: int, steps: int, ratio: float) -> App:
    """K17 at S3's terms: the I/O ratio is that of one application alone on the PFS."""
    alone = processes * bytes_each / PFS_ALONE
    words = ["phases", "--bytes", str(bytes_each), "--steps", str(steps)]
    words += ["--alone-seconds", f"{alone:.3f}", "--io-ratio", f"{ratio:g}"]
    return App(words, processes)


def sweep(setting: Setting, result: Result, points: dict[float, list[App]], strategies=STRATEGIES) -> None:
    """Rows of all strategies at all points; strategies in turn within each repeat."""
    found: dict[tuple[str, str, float], list[float]] = {}
    used = []
    for repeat in range(setting.repeats):
        for x, apps in points.items():
            order = strategies[repeat % len(strategies) :] + strategies[: repeat % len(strategies)]
            for outcome in side_by_side(setting, order, apps, ("--no-local",)):
                rows = {
                    "mean I/O time of a step": outcome.mean_step(),
                    "I/O time of a step of the slowest application": outcome.slowest_step(),
                    "time until all is on the PFS": outcome.flushed,
                    "used part of the PFS": 100 * outcome.pfs_used(),
                }
                for what, value in rows.items():
                    found.setdefault((what, outcome.strategy, x), []).append(value)
                print(f"  {x:g} {outcome.strategy}: {outcome.mean_step():.2f} s a step", file=sys.stderr)
            used.append(setting.cpu_used)
    for (what, strategy, x), values in sorted(found.items()):
        result.add(what, strategy, x, "%" if "part" in what else "s", values)
    result.model = "the bandwidths of both tiers are shaped (experiments/shapes/ssd.toml, hdd.toml): not real storage"
    result.findings.append(
        f"the machine's processors were busy for {100 * max(used):.0f} % of a run at most; storage is shaped, not real"
    )


def medians(result: Result, what: str) -> dict[str, dict[float, float]]:
    table: dict[str, dict[float, float]] = {}
    for row in result.rows:
        if row.what == what:
            table.setdefault(row.series, {})[row.x] = statistics.median(row.values)
    return table


def compare(result: Result, bars: tuple[float, float], papers: str) -> None:
    """The paper's factors over the whole sweep, and which strategies beat `ia`."""
    mean, slowest = (
        medians(result, what) for what in ("mean I/O time of a step", "I/O time of a step of the slowest application")
    )
    for name, bar in zip(("baseline", "hp"), bars):
        factors = {x: mean[name][x] / mean["ia"][x] for x in mean["ia"]}
        met = all(factor >= bar for factor in factors.values())
        text = ", ".join(f"{factor:.2f} at {x:g}" for x, factor in factors.items())
        result.findings.append(f"{name} takes {text} times as long as ia: bar {bar:g} {'met' if met else 'NOT met'}; {papers}")
    for name in mean:
        if name in ("baseline", "hp", "ia"):
            continue
        gains = {x: mean["ia"][x] / mean[name][x] for x in mean["ia"]}
        worst = {x: slowest["ia"][x] / slowest[name][x] for x in mean["ia"]}
        better = min(gains.values()) > 1 and min(worst.values()) >= 1
        result.findings.append(
            f"ia takes {', '.join(f'{gain:.2f} at {x:g}' for x, gain in gains.items())} times as long as {name}, "
            f"its slowest application {', '.join(f'{gain:.2f}' for gain in worst.values())}: "
            f"{name} is {'better everywhere' if better else 'NOT better everywhere'}"
        )


def draw(report: dict, rows: list[dict]):
    """A panel for each quantity, a group of bars for each point of the sweep."""
    return figures.quantities(report, rows)
