"""F27: does the protocol of the measurements happen? Watched from outside, and what it changes."""

from __future__ import annotations

import os
import statistics
import threading
import time
from pathlib import Path

import figures
from harness import Failed, Result, Setting, join_cores, pick, split_cores

TITLE = "the protocol of measurements: done, and what it changes"
LOOK_SECONDS = 0.05
AS_IS, BY_PROTOCOL = "warm, sharing all cores", "by the protocol"


class Watcher(threading.Thread):
    """Looks at the daemons and the benchmark's processes of this experiment, as /proc shows them."""

    def __init__(self, runtime: Path) -> None:
        super().__init__(daemon=True)
        self.runtime = str(runtime).encode()
        self.ended = threading.Event()
        # Process id, and the sets of cores its threads were seen on.
        self.daemons: dict[int, set[str]] = {}
        self.programs: dict[int, set[str]] = {}

    def run(self) -> None:
        while not self.ended.wait(LOOK_SECONDS):
            for place in Path("/proc").iterdir():
                if place.name.isdigit():
                    self.look(place)

    def look(self, place: Path) -> None:
        try:
            name = (place / "comm").read_text().strip()
            if name not in ("tidepoold", "tidepool") or self.runtime not in (place / "environ").read_bytes():
                return
            words = (place / "cmdline").read_bytes().split(b"\0")
            cores = {allowed(task / "status") for task in (place / "task").iterdir()}
        except (FileNotFoundError, ProcessLookupError):
            return  # It has ended meanwhile.
        if name == "tidepoold":
            # Its first moment, before it has set its mask, does not count.
            self.daemons[int(place.name)] = cores
        elif words[1:3] == [b"bench", b"worker"]:
            self.programs.setdefault(int(place.name), set()).update(cores)

    def stop(self) -> None:
        self.ended.set()
        self.join()


def allowed(status: Path) -> str:
    for line in status.read_text().splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return line.split()[1]
    raise FileNotFoundError(status)


def measure(setting: Setting) -> Result:
    setting.fewer_repeats(3)
    daemons, procs, files, megabytes = (2, 2, 1_000, 16) if setting.quick else (2, 2, 50_000, 512)
    repeats = setting.repeats
    result = Result("")
    setting.steps.clear()
    parts = split_cores(sorted(os.sched_getaffinity(0))) if setting.has_switch("--daemon-cores") else None
    for series in (AS_IS, BY_PROTOCOL):
        setting.cold = series == BY_PROTOCOL
        setting.pinned = parts if series == BY_PROTOCOL else None
        watcher = Watcher(setting.work / "rt")
        watcher.start()
        began = time.monotonic()
        md = setting.bench("md", setting.disk, daemons, "--procs", str(procs), "--files", str(files))
        io = setting.bench(
            "io",
            setting.disk,
            daemons,
            "--procs",
            str(procs),
            "--file-size",
            f"{megabytes}MiB",
            "--sizes",
            "1MiB",
            "--layouts",
            "files",
            "--orders",
            "sequential",
        )
        seconds = time.monotonic() - began
        watcher.stop()
        for phase in ("create", "stat", "remove"):
            found = [s.rate() for s in pick(md, case="one shared directory", side="pool", phase=phase)]
            result.add("metadata operations", series, ["create", "stat", "remove"].index(phase), "operations/s", found)
        for phase in ("write", "read"):
            found = [s.bandwidth() for s in pick(io, side="pool", phase=phase)]
            result.add("data, 1 MiB", series, ["write", "read"].index(phase), "MiB/s", found)
        check(setting, result, series, watcher, daemons, repeats)
        result.findings.append(f"{series}: {seconds:.0f} s for {repeats} repeats of each")
    if parts is None:
        result.findings.append("not pinned: one core only, or this build of tidepool has no --daemon-cores")
    compare(result)
    result.details["steps"] = sorted(setting.steps)
    result.findings.append(result.widest())
    return result


def check(setting: Setting, result: Result, series: str, watcher: Watcher, daemons: int, repeats: int) -> None:
    """What was seen against what the protocol says."""
    seen = {
        "daemon_processes": len(watcher.daemons),
        "daemon_cores": sorted(set().union(*watcher.daemons.values())),
        "program_cores": sorted(set().union(*watcher.programs.values())),
    }
    result.details[f"seen, {series}"] = seen
    # Two benchmarks; by the protocol each repeat has daemons of its own.
    wanted = 2 * daemons * (repeats if series == BY_PROTOCOL else 1)
    if len(watcher.daemons) != wanted:
        raise Failed(f"{series}: {len(watcher.daemons)} daemons were seen instead of {wanted}")
    result.findings.append(
        f"{series}: {wanted} daemons were seen in 2 benchmarks of {repeats} repeats with {daemons} daemons"
    )
    if setting.pinned:
        programs, ours = (join_cores(cores) for cores in setting.pinned)
        right = seen["program_cores"] == [as_list(programs)] and seen["daemon_cores"] == [as_list(ours)]
        if not right:
            raise Failed(f"not pinned as asked: daemons {seen['daemon_cores']}, programs {seen['program_cores']}")
        result.findings.append(
            f"{series}: all threads of daemons were seen on core(s) {ours} only, all programs' on {programs} only"
        )


def as_list(cores: str) -> str:
    """`0,1,2,5` as the kernel writes it: `0-2,5`."""
    parts: list[list[int]] = []
    for core in map(int, cores.split(",")):
        if parts and parts[-1][-1] == core - 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def compare(result: Result) -> None:
    told = []
    for row in [r for r in result.rows if r.series == BY_PROTOCOL]:
        before = result.mean(row.what, AS_IS, row.x)
        told.append(f"{name_of(row.what, row.x)} {statistics.fmean(row.values) / before:.2f}")
    result.findings.append(f"by the protocol in relation to warm and sharing: {', '.join(told)}")


def name_of(what: str, x: float) -> str:
    names = ("create", "stat", "remove") if what.startswith("metadata") else ("write", "read")
    return names[int(x)]


def draw(report: dict, rows: list[dict]):
    whats = list(dict.fromkeys(row["what"] for row in rows))
    figure, axes = figures.panels(len(whats), width=5.4)
    for one, what in zip(axes, whats):
        names = {row["x"]: name_of(what, row["x"]) for row in rows if row["what"] == what}
        figures.bars(one, rows, what, "", names)
    figures.legend_below(figure, axes)
    return figure
