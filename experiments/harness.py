"""What all experiments share: the command under test, the protocol, results and their files.

Results are rows: one series, one measured quantity (`what`), one x. Their kind is `measured`, `modelled`
(computed from measured rows by a model that the report states) or `published` (by others, on other machines).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

KINDS = ("measured", "modelled", "published")
COLUMNS = ("what", "series", "kind", "x", "unit", "n", "mean", "sd_percent", "min", "max")
# With fewer, pinning leaves each side one core and measures the scheduler.
PIN_CORES_MIN = 4
REPEATS = 5
COMMAND_SECONDS_MAX = 4 * 3600


class Failed(Exception):
    """An experiment cannot go on; the text says why."""


@dataclass
class Row:
    what: str
    series: str
    kind: str
    x: float
    unit: str
    values: list[float]

    def __post_init__(self) -> None:
        if self.kind not in KINDS or not self.values:
            raise ValueError(f"row {self.series}/{self.what}: kind {self.kind}, {len(self.values)} values")

    def summary(self) -> dict[str, object]:
        return {
            "what": self.what,
            "series": self.series,
            "kind": self.kind,
            "x": self.x,
            "unit": self.unit,
            "n": len(self.values),
            "mean": statistics.fmean(self.values),
            "sd_percent": sd_percent(self.values),
            "min": min(self.values),
            "max": max(self.values),
        }


def sd_percent(values: list[float]) -> float | None:
    """Standard deviation of a sample in percent of the mean, as the paper gives it; None for one value."""
    mean = statistics.fmean(values)
    if len(values) < 2 or mean == 0:
        return None
    return 100 * statistics.stdev(values) / mean


@dataclass
class Result:
    """What an experiment found."""

    x_label: str
    rows: list[Row] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    model: str = ""
    # More for the record, in whatever shape fits.
    details: dict[str, object] = field(default_factory=dict)

    def add(self, what: str, series: str, x: float, unit: str, values: list[float], kind: str = "measured") -> Row:
        row = Row(what, series, kind, x, unit, values)
        self.rows.append(row)
        return row

    def mean(self, what: str, series: str, x: float) -> float:
        found = [r for r in self.rows if (r.what, r.series, r.x) == (what, series, x)]
        if len(found) != 1:
            raise KeyError(f"{len(found)} rows for {what}, {series}, {x}")
        return statistics.fmean(found[0].values)

    def widest(self) -> str:
        """A finding on how much samples differ."""
        known = [(sd_percent(r.values) or 0.0, r) for r in self.rows if r.kind == "measured" and len(r.values) > 1]
        if not known:
            return "one sample each: no standard deviations"
        sd, row = max(known, key=lambda pair: pair[0])
        middle = statistics.median(sd for sd, _ in known)
        return (
            f"standard deviations: median {middle:.1f} % of the mean, largest {sd:.1f} % "
            f"({row.series}, {row.what}, x = {row.x:g})"
        )


@dataclass
class Store:
    """A directory for pools, and how files of results call it."""

    label: str
    path: Path
    type: str


class Setting:
    """The command under test and everything it runs in; removes what it made."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.quick: bool = args.quick
        self.repeats: int = args.repeats or REPEATS
        self.command = find_command(args.tidepool)
        self.work = Path(tempfile.mkdtemp(prefix="tidepool-experiment-"))
        self.memory = Store("memory", args.memory, file_system(args.memory))
        self.disk = Store("disk", args.disk, file_system(args.disk))
        self.cold = not args.warm and not self.quick
        cores = sorted(os.sched_getaffinity(0))
        wanted = args.pin if args.pin is not None else len(cores) >= PIN_CORES_MIN and not self.quick
        self.pinned: tuple[list[int], list[int]] | None = split_cores(cores) if wanted else None
        self.commands: list[str] = []
        self.steps: set[str] = set()
        self.commit = ""
        if self.pinned and not self.has_switch("--daemon-cores"):
            self.pinned = None
            self.steps.add("not pinned: this build of tidepool has no --daemon-cores")
        elif not self.pinned:
            self.steps.add("not pinned: daemons and programs share all cores")

    def __enter__(self) -> Setting:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.work)

    def fewer_repeats(self, count: int) -> None:
        """For experiments that take long: that many in a quick run, unless a number was asked for."""
        if self.quick and not self.args.repeats:
            self.repeats = count

    def stores(self) -> list[Store]:
        return [self.memory, self.disk]

    def help(self, *words: str) -> str:
        return self.capture([str(self.command), *words, "--help"])

    def has_switch(self, switch: str) -> bool:
        return re.search(rf"^\s+(-\w, )?{switch}\b", self.help("run"), re.MULTILINE) is not None

    def environment(self) -> dict[str, str]:
        ours = {k: v for k, v in os.environ.items() if not k.startswith(("TIDEPOOL_", "LD_PRELOAD"))}
        return ours | {"TIDEPOOL_RUNTIME": str(self.work / "rt")}

    def capture(self, command: list[str], extra: dict[str, str] | None = None) -> str:
        """Standard output of a command that must succeed."""
        done = subprocess.run(
            command,
            env=self.environment() | (extra or {}),
            stdout=subprocess.PIPE,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
        if done.returncode != 0:
            raise Failed(f"'{self.scrub(command)}' ended with {done.returncode}; its message is above")
        return done.stdout

    def scrub(self, command: list[str], extra: dict[str, str] | None = None) -> str:
        """A command line without this machine's paths."""
        text = " ".join([f"{k}={v}" for k, v in (extra or {}).items()] + command)
        for path, name in (
            (self.command, "tidepool"),
            (self.work, "WORK"),
            (Path(__file__).resolve().parent, "experiments"),
            (self.memory.path, "MEMORY"),
            (self.disk.path, "DISK"),
        ):
            text = text.replace(str(path), name)
        return text

    def note(self, command: list[str], extra: dict[str, str] | None = None) -> None:
        text = self.scrub(command, extra)
        if text not in self.commands:
            self.commands.append(text)

    def pin_prefix(self) -> list[str]:
        return ["taskset", "-c", join_cores(self.pinned[0])] if self.pinned else []

    def pool_switches(self) -> list[str]:
        return ["--daemon-cores", join_cores(self.pinned[1])] if self.pinned else []

    def bench(
        self,
        kind: str,
        store: Store,
        daemons: int,
        *more: str,
        repeats: int | None = None,
        env: dict[str, str] | None = None,
    ) -> list[Sample]:
        """`tidepool bench`: every sample of both sides."""
        raw = self.work / "raw"
        shutil.rmtree(raw, ignore_errors=True)
        command = self.pin_prefix() + [str(self.command), "bench", kind, "--local", "--nodes", str(daemons)]
        command += ["--store", str(store.path), "--client", self.args.client, "--repeats", str(repeats or self.repeats)]
        command += [*self.pool_switches(), *(["--cold"] if self.cold else []), *more]
        self.note(command, env)
        print(f"  {self.scrub(command, env)}", file=sys.stderr)
        self.capture([*command, "--raw", str(raw)], env)
        files = list(raw.iterdir())
        if len(files) != 1:
            raise Failed(f"tidepool bench left {len(files)} raw files instead of one")
        report = json.loads(files[0].read_text())
        self.commit = report["commit"] or ""
        self.steps.update(report["steps"])
        if self.pinned:
            self.steps.add(f"daemons on cores {join_cores(self.pinned[1])}, programs on {join_cores(self.pinned[0])}")
        return [Sample.read(s) for s in report["samples"]]

    def need_space(self, store: Store, byte_count: int) -> None:
        """Fails before a run that would fill a store."""
        free = shutil.disk_usage(store.path).free
        if free < 1.2 * byte_count + (1 << 30):
            raise Failed(
                f"the {store.label} store has {free >> 20} MiB free, and {byte_count >> 20} MiB and a reserve are needed; "
                f"give another by --{store.label}"
            )


@dataclass
class Sample:
    """One timed phase of all processes together, on one side."""

    case: str
    side: str
    phase: str
    repeat: int
    seconds: float
    synced_seconds: float
    operations: int
    bytes: int
    client_cpu: float
    daemon_cpu: float

    @staticmethod
    def read(raw: dict) -> Sample:
        m = raw["measured"]
        return Sample(
            raw["case"],
            raw["side"],
            m["phase"],
            raw["repeat"],
            m["seconds"],
            m["synced_seconds"],
            m["operations"],
            m["bytes"],
            m["client_cpu_seconds"],
            m["daemon_cpu_seconds"],
        )

    def rate(self) -> float:
        """Operations per second."""
        return self.operations / self.seconds

    def bandwidth(self) -> float:
        """MiB per second, for writes until their fsync has returned."""
        return self.bytes / self.synced_seconds / (1 << 20)


def pick(samples: list[Sample], **wanted: str) -> list[Sample]:
    found = [s for s in samples if all(getattr(s, k) == v for k, v in wanted.items())]
    if not found:
        raise KeyError(f"no sample for {wanted}")
    return found


class Pool:
    """A pool that runs until the end of a `with`."""

    def __init__(self, setting: Setting, store: Store, daemons: int, *switches: str) -> None:
        self.setting, self.store, self.daemons, self.switches = setting, store, daemons, switches

    def __enter__(self) -> Pool:
        command = [
            str(self.setting.command),
            "pool",
            "start",
            "--name",
            "experiment",
            "--local",
            "--nodes",
            str(self.daemons),
        ]
        command += ["--store", str(self.store.path), "--client", self.setting.args.client, *self.switches]
        self.setting.note(command)
        self.setting.capture(command)
        return self

    def __exit__(self, *_: object) -> None:
        self.setting.capture([str(self.setting.command), "pool", "stop", "--pool", "experiment"])

    def status(self) -> list[dict]:
        text = self.setting.capture([str(self.setting.command), "pool", "status", "--pool", "experiment", "--json"])
        return json.loads(text)["daemons"]

    def exec(self, *program: str) -> str:
        command = [
            str(self.setting.command),
            "exec",
            "--pool",
            "experiment",
            "--client",
            self.setting.args.client,
            "--",
            *program,
        ]
        self.setting.note(command)
        return self.setting.capture(command)


def find_command(wanted: Path | None) -> Path:
    if wanted:
        places = [wanted]
    else:
        # Where cargo puts what it builds; a path that is not absolute counts from the repository.
        target = Path(__file__).resolve().parent.parent / os.environ.get("CARGO_TARGET_DIR", "target")
        built = target / "release" / "tidepool"
        found = shutil.which("tidepool")
        places = [built] + ([Path(found)] if found else [])
    for place in places:
        if place.is_file():
            return place.resolve()
    raise Failed(f"there is no {places[0]}; run 'make release' first, or name the command by --tidepool")


def file_system(path: Path) -> str:
    """Type of the file system that holds `path`."""
    if not path.is_dir():
        raise Failed(f"{path} is no directory; name another by --memory or --disk")
    done = subprocess.run(["stat", "-f", "-c", "%T", str(path)], capture_output=True, text=True, check=True)
    return done.stdout.strip().replace("ext2/ext3", "ext4")


def split_cores(cores: list[int]) -> tuple[list[int], list[int]] | None:
    """Cores for programs and for daemons: a socket each where there are two, else a half each."""
    sockets: dict[str, list[int]] = {}
    for core in cores:
        place = Path(f"/sys/devices/system/cpu/cpu{core}/topology/physical_package_id")
        sockets.setdefault(place.read_text().strip() if place.exists() else "0", []).append(core)
    if len(sockets) >= 2:
        first, second, *_ = (sockets[key] for key in sorted(sockets))
        return first, second
    half = len(cores) // 2
    return (cores[half:], cores[:half]) if half else None


def join_cores(cores: list[int]) -> str:
    return ",".join(map(str, cores))


def machine() -> dict[str, object]:
    """This machine without its name."""
    processor = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return {
        "processor": processor[1] if processor else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": int(memory[1]) * 1024 if memory else None,
        "kernel": platform.release(),
    }


def commit_of(command: Path) -> str:
    """Commit of the sources that the command lies in, or else this folder; empty when unknown."""
    for place in (command.parent, Path(__file__).resolve().parent):
        git = ["git", "-C", str(place), "describe", "--always", "--dirty", "--abbrev=40"]
        try:
            done = subprocess.run(git, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return ""
        if done.returncode == 0:
            return done.stdout.strip()
    return ""


def save(out: Path, name: str, title: str, setting: Setting, result: Result) -> None:
    """Writes NAME.csv, for the plot, and NAME.json, for the record."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(row.summary() for row in result.rows)
    version = setting.capture([str(setting.command), "--version"]).strip()
    report = {
        "experiment": name,
        "title": title,
        "quick": setting.quick,
        "version": version,
        "commit": setting.commit or commit_of(setting.command) or None,
        "time": int(time.time()),
        "machine": machine(),
        "stores": {store.label: store.type for store in setting.stores()},
        "client": setting.args.client,
        "repeats": setting.repeats,
        "caches": "cold" if setting.cold else "warm",
        "steps": sorted(setting.steps),
        "commands": setting.commands,
        "x_label": result.x_label,
        "model": result.model,
        "findings": result.findings,
        "details": result.details,
        "rows": [row.summary() | {"values": row.values} for row in result.rows],
    }
    (out / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def load(out: Path, name: str) -> tuple[dict, list[dict]]:
    """The report and the rows of the CSV, which plots are drawn from."""
    try:
        report = json.loads((out / f"{name}.json").read_text(encoding="utf-8"))
        with (out / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except FileNotFoundError as missing:
        raise Failed(f"there is no {missing.filename}: nothing has been measured there") from None
    for row in rows:
        for column in ("x", "mean", "min", "max"):
            row[column] = float(row[column])
        row["sd_percent"] = float(row["sd_percent"]) if row["sd_percent"] else None
    return report, rows
