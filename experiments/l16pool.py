"""L16 (HPIS3, Figure 5): random writes of clients on pools of 4 slow and of 4 fast nodes, real and simulated."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
from itertools import product
from pathlib import Path

import figures
from harness import Failed, Result, Setting
from stagers import begin_together
from switches import POOL, Fabric, SwitchedPool, permitted

TITLE = "random writes on pools of 4 slow and 4 fast nodes, real and simulated (HPIS3, Figure 5)"
WRITER = Path(__file__).resolve().parent / "randomwriter.py"
NODES = 4
# Of a node's device, in Mbit/s: slow ones (H), and fast ones (S) as far as two cores can feed four of them.
DEVICES = {"H": 24, "S": 96}
SIZES, QUICK_SIZES = (4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10), (4 << 10, 16 << 10, 64 << 10, 256 << 10)
CLIENTS, QUICK_CLIENTS = (2, 4, 8), (4, 8)
MILLISECONDS, QUICK_MILLISECONDS = 1500, 300
REGION = 16 << 20
PUBLISHED = {"mean": 11.98, "lowest": 2.0}
TRIALS = 10


def measure(setting: Setting) -> Result:
    setting.fewer_repeats(1)
    if not permitted():
        raise Failed("nodes are network name spaces with shaped links, which need root")
    result = Result("bytes of a request")
    result.model = "a pool as one device with three stages, fitted to half of the sizes and numbers of clients; simulated points are of the other half"
    result.details.update(device_mbit=DEVICES, nodes=NODES, bytes_of_a_file=REGION)
    for name, mbit in DEVICES.items():
        runs = measured(setting, mbit)
        conclude(setting, result, name, runs)
    result.findings.append(
        f"published, on real hard and solid-state disks: mean error {PUBLISHED['mean']} %, lowest {PUBLISHED['lowest']:g} %; here devices are shaped links"
    )
    return result


def measured(setting: Setting, mbit: int) -> list[dict]:
    sizes, counts = (QUICK_SIZES, QUICK_CLIENTS) if setting.quick else (SIZES, CLIENTS)
    every = list(product(sizes, counts))
    shuffler, runs = random.Random(5), []
    with Fabric(setting, 1, NODES) as fabric:
        fabric.shape_devices(mbit, mbit)
        with SwitchedPool(fabric, list(fabric.nodes), "wide", "--stripe", "0", "--chunk-size", "64KiB") as pool:
            for repeat in range(setting.repeats):
                for size, clients in shuffler.sample(every, len(every)):
                    runs.append(one(setting, pool, size, clients, repeat))
    return runs


def one(setting: Setting, pool: SwitchedPool, size: int, clients: int, seed: int) -> dict:
    """So many clients, spread over the nodes, each with a file of its own."""
    fabric, children = pool.fabric, []
    milliseconds = QUICK_MILLISECONDS if setting.quick else MILLISECONDS
    try:
        for client in range(clients):
            writer = [sys.executable, str(WRITER), f"file{client}", str(size), str(REGION), str(milliseconds), str(seed)]
            words = ["exec", "--pool", POOL, "--client", "preload", "--", *writer]
            command = fabric.command(1 + client % NODES, *words)
            pipe = subprocess.PIPE
            children.append(subprocess.Popen(command, env=fabric.environment(), stdin=pipe, stdout=pipe, text=True))
        told = begin_together(children)
        for child in children:
            child.communicate()
    finally:
        for child in children:
            child.kill()
            child.wait()
    seconds = (max(t["ended"] for t in told) - min(t["began"] for t in told)) / 1e9
    rate = sum(t["requests"] for t in told) / seconds
    return {"write": True, "random": True, "bytes": size, "clients": clients, "per_second": rate}


def conclude(setting: Setting, result: Result, name: str, runs: list[dict]) -> None:
    file, model = setting.work / f"runs-{name}.json", setting.work / f"{name}.toml"
    file.write_text(json.dumps({"runs": runs}))
    result.details[f"runs, {name}"] = runs
    tool = [str(setting.command), "sim"]
    common = ["--measurements", str(file), "--json"]
    trials = "1" if setting.quick else str(TRIALS)
    calibrate = [*tool, "calibrate", "storage", *common, "--out", str(model), "--trials", trials, "--repeats", "10"]
    validate = [*tool, "validate", "storage", *common, "--model", str(model)]
    for command in (calibrate, validate):
        setting.note(command)
    fitted, judged = (json.loads(setting.capture(command)) for command in (calibrate, validate))
    groups: dict[tuple[int, int], list[dict]] = {}
    for run in judged["runs"]:
        groups.setdefault((run["clients"], run["bytes"]), []).append(run)
    for (clients, size), found in sorted(groups.items()):
        result.add(f"{name}-ran", f"{clients} clients", size, "MB/s", [run["measured"] * size / 1e6 for run in found])
        simulated = found[0]["simulated"] * size / 1e6
        result.add(f"{name}-ran", f"{clients} clients, simulated", size, "MB/s", [simulated], "modelled")
    errors = [100 * trial["result"]["mean_error"] for trial in fitted["trials"]]
    least = min(100 * trial["result"]["least_error"] for trial in fitted["trials"])
    within = statistics.fmean(100 * trial["result"]["within"] for trial in fitted["trials"])
    noise = "nothing was repeated" if fitted["noise"] is None else f"{100 * fitted['noise']:.1f} %"
    result.findings.append(
        f"{name}, 4 nodes with devices of {DEVICES[name]} Mbit/s: mean error of held-out configurations {statistics.fmean(errors):.1f} % "
        f"({min(errors):.1f} to {max(errors):.1f} over {len(errors)} random halves), lowest {least:.1f} %; the paper: 11.98 % and 2 %; "
        f"{within:.0f} % of runs within their 90 % interval; noise: {noise}"
    )


def draw(report: dict, rows: list[dict]):
    whats = list(dict.fromkeys(row["what"] for row in rows))
    figure, axes = figures.panels(len(whats), width=5.2)
    for one_, what in zip(axes, whats):
        figures.lines(one_, rows, what, report["x_label"], log_x=True, log_y=True)
        ticks = sorted({row["x"] for row in rows if row["what"] == what})
        one_.set_xticks(ticks, [figures.size_name(tick) for tick in ticks], fontsize=7)
    figures.legend_below(figure, axes, columns=3)
    return figure
