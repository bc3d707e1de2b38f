"""J3 (Miranda et al. 2019, Figure 4): what requests of processes on the stager's node cost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import figures
from harness import Failed, Result, Setting
from stagers import Process, Stager, make_spaces

TITLE = "local requests to a stager: rate and latency"
WORKS = ("ping", "submit", "copy")
NAMES = {"ping": "null request", "submit": "submit", "copy": "submit and wait, 4 KiB copy"}
COUNTS, QUICK_COUNTS = [1, 2, 4, 8, 16, 32], [1, 4]
# Requests of all clients of a measurement together.
TOTAL = {"ping": 50_000, "submit": 50_000, "copy": 10_000}
QUICK_TOTAL = 400
OURS, OUR_C = "tidepool, Rust", "tidepool, libnorns"
PEER, PEER_C = "NORNS, libnorns", "tidepool, libnorns of NORNS"
# Directory with the bin, lib and etc of an installed NORNS, to be measured beside.
PEER_VARIABLE = "TIDEPOOL_NORNS"
# At 32 processes on 48 cores; the latency is the worst of all.
PUBLISHED_CLIENTS, PUBLISHED_RATE, PUBLISHED_US = 32, 700_000, 50
HERE = Path(__file__).resolve().parent


def measure(setting: Setting) -> Result:
    setting.fewer_repeats(1)
    counts = QUICK_COUNTS if setting.quick else COUNTS
    result = Result("client processes")
    sides = [(OURS, None)] + c_sides(setting, result)
    found: dict[tuple[str, str, int], list[dict]] = {}
    for _ in range(setting.repeats):
        for clients in counts:
            for work in WORKS:
                requests = max(1, (QUICK_TOTAL if setting.quick else TOTAL[work]) // clients)
                # They take turns, so that what else happens here meets all alike.
                for series, side in sides:
                    one = side.run(work, clients, requests) if side else rust(setting, work, clients, requests)
                    found.setdefault((series, work, clients), []).append(one)
    for (series, work, clients), samples in found.items():
        result.add(f"{NAMES[work]}: rate", series, clients, "requests/s", [s["per_second"] for s in samples])
        result.add(f"{NAMES[work]}: latency", series, clients, "us, p50", [s["p50_us"] for s in samples])
    paper = "NORNS, 48 cores"
    result.add("submit: rate", paper, PUBLISHED_CLIENTS, "requests/s", [PUBLISHED_RATE], "published")
    result.add("submit: latency", f"{paper}, worst", PUBLISHED_CLIENTS, "us, p50", [PUBLISHED_US], "published")
    lost = dict.fromkeys([series for series, _ in sides], 0)
    for (series, *_), samples in found.items():
        lost[series] += sum(sample.get("lost", 0) for sample in samples)
    conclude(result, [series for series, _ in sides], counts)
    tell_lost(result, lost)
    return result


def tell_lost(result: Result, lost: dict[str, int]) -> None:
    """A daemon that forgets a task before its end was told has not done what was measured; only NORNS may."""
    for series, count in lost.items():
        if count and series != PEER:
            raise Failed(f"{series}: {count} copies were unknown to the stager when it was asked how they were")
        if count:
            result.findings.append(f"{series}: {count} copies were unknown to the daemon when it was asked how they were")


def rust(setting: Setting, work: str, clients: int, requests: int) -> dict:
    command = [str(setting.command), "bench", "stager", "--clients", str(clients), "--work", work]
    command += ["--requests", str(requests), "--repeats", "1", "--dir", str(setting.memory.path), "--json"]
    setting.note(command)
    return json.loads(setting.capture(command))["samples"][0]


class CProgram:
    """requests.c, linked with one libnorns; a daemon of its own for each measurement."""

    def __init__(self, setting: Setting, name: str, headers: Path, libraries: Path, names: list[str]) -> None:
        self.setting, self.program = setting, setting.work / f"requests-{name}"
        command = ["cc", "-O2", f"-I{headers}", str(HERE / "requests.c"), "-o", str(self.program)]
        command += [f"-L{libraries}", f"-Wl,-rpath,{libraries}", *(f"-l{n}" for n in names)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(f"experiments/requests.c does not build:\n{done.stderr}")

    def call(self, config: Path, *words: str) -> str:
        return self.setting.capture([str(self.program), *words], {"NORNS_CONFIG_FILE": str(config)})

    def note(self, work: str, clients: int, requests: int) -> None:
        self.setting.note(["requests", work, str(clients), str(requests)])


class Ours(CProgram):
    """With a stager of this project; `compatible` through its socket for the libraries of NORNS."""

    compatible = False

    def run(self, work: str, clients: int, requests: int) -> dict:
        self.note(work, clients, requests)
        with Stager(self.setting) as stager:
            stager.admit(os.getpid())
            config = stager.norns_config(self.compatible)
            return json.loads(self.call(config, work, str(clients), str(requests)))


class Compatible(Ours):
    compatible = True


class Peer(CProgram):
    """With the urd of an installed NORNS, whose configuration file has its place compiled in."""

    def __init__(self, setting: Setting, prefix: Path) -> None:
        super().__init__(setting, "norns", prefix / "include", prefix / "lib", ["norns", "nornsctl"])
        self.prefix = prefix

    def run(self, work: str, clients: int, requests: int) -> dict:
        spaces = self.setting.memory.path / f"norns-experiment-{os.getpid()}"
        spaces.mkdir()
        make_spaces(spaces)
        config = self.prefix / "etc" / "norns.conf"
        try:
            # Libraries that it was built with may have been installed beside it.
            env = self.setting.environment() | {"LD_LIBRARY_PATH": str(self.prefix / "lib")}
            with Process([str(self.prefix / "bin" / "urd"), "-f"], ready=False, env=env):
                self.call_when_up(config, "register", "a://", str(spaces / "a"))
                self.call(config, "register", "b://", str(spaces / "b"))
                return json.loads(self.call(config, work, str(clients), str(requests)))
        finally:
            shutil.rmtree(spaces)

    def call_when_up(self, config: Path, *words: str) -> None:
        for _ in range(100):
            env = self.setting.environment() | {"NORNS_CONFIG_FILE": str(config)}
            done = subprocess.run([str(self.program), *words], env=env, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return
            time.sleep(0.1)
        raise Failed(f"urd does not answer: {done.stderr.strip()}")


def c_sides(setting: Setting, result: Result) -> list[tuple[str, CProgram]]:
    libraries, headers = setting.command.parent, HERE.parent / "crates" / "capi" / "include"
    if not shutil.which("cc") or not (libraries / "libnorns.so").is_file() or not headers.is_dir():
        result.findings.append("the C library was not measured: no cc, or no libnorns.so beside the command")
        return []
    sides: list[tuple[str, CProgram]] = [(OUR_C, Ours(setting, "ours", headers, libraries, ["norns"]))]
    wanted = os.environ.get(PEER_VARIABLE)
    if not wanted:
        result.findings.append(f"NORNS itself was not measured: {PEER_VARIABLE} names no directory where it is installed")
        return sides
    prefix = Path(wanted).resolve()
    for needed in ("bin/urd", "lib/libnorns.so", "lib/libnornsctl.so", "include/norns.h", "etc/norns.conf"):
        if not (prefix / needed).is_file():
            raise Failed(f"{PEER_VARIABLE} names a directory without {needed}")
    sides.append((PEER, Peer(setting, prefix)))
    compatible = Compatible(setting, "compatible", prefix / "include", prefix / "lib", ["norns", "nornsctl"])
    return [*sides, (PEER_C, compatible)]


def conclude(result: Result, series: list[str], counts: list[int]) -> None:
    most = counts[-1]
    for one in series:
        rates = {w: result.mean(f"{NAMES[w]}: rate", one, most) for w in WORKS}
        result.findings.append(
            f"{one}, {most} processes: {rates['submit']:,.0f} submissions/s, {rates['submit'] / rates['ping']:.2f} of the null "
            f"requests through the same socket; {rates['copy']:,.0f} copies/s"
        )
        p50 = {w: result.mean(f"{NAMES[w]}: latency", one, 1) for w in WORKS}
        result.findings.append(
            f"{one}, one process: p50 {p50['submit']:.1f} us to submit, {p50['submit'] / p50['ping']:.2f} of a null request; "
            f"{p50['copy']:.0f} us for a copy"
        )
    if PEER in series:
        for work in WORKS:
            ratios = [
                result.mean(f"{NAMES[work]}: rate", OUR_C, n) / result.mean(f"{NAMES[work]}: rate", PEER, n)
                for n in counts
            ]
            told = ", ".join(f"{ratio:.1f}" for ratio in ratios)
            result.findings.append(f"{NAMES[work]}: {OUR_C} / {PEER}, by processes: {told}")
    result.findings.append(
        f"published: {PUBLISHED_RATE:,} requests/s, {PUBLISHED_US} us in the worst case, {PUBLISHED_CLIENTS} processes on 48 cores"
    )
    result.findings.append(result.widest())


def draw(report: dict, rows: list[dict]):
    whats = [f"{NAMES[work]}: {of}" for of in ("rate", "latency") for work in WORKS]
    figure, axes = figures.panels(len(whats), columns=len(WORKS))
    for one, what in zip(axes, whats):
        figures.lines(one, rows, what, report["x_label"], log_x=True, log_y=True)
    figures.legend_below(figure, axes)
    return figure
