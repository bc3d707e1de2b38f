"""What extrapolations share: a pool in the simulator, from processor times that were measured on one node here.

All results are of kind `modelled` and are called simulated wherever they are told.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
from dataclasses import dataclass, replace

from harness import Result, Setting

# Of the nodes that are simulated (the paper's: two processors with ten cores each, 100 Gbit/s).
CORES, PROCS = 20, 16
LINK = 12_500_000_000
# Assumed: from a process to a daemon on another node, one way.
LATENCY_US = 5.0
NODES, QUICK_NODES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), (1, 16)
SIMULATED = "simulated"
PUBLISHED_NAME = "GekkoFS, 512 nodes"


@dataclass(frozen=True)
class Node:
    """A node of a pool: what its parts take, and what is assumed of it."""

    # Processor time of a request, client's and daemon's, in microseconds.
    cpu_us: float
    cores: int = CORES
    procs: int = PROCS
    latency_us: float = LATENCY_US
    # Of a request, beside processor time and latency, as measured: processes are woken up.
    wait_us: float = 0
    # Bytes/s; 0: unlimited.
    link: float = 0
    device: float = 0


def nanoseconds(microseconds: float) -> int:
    return max(1, round(microseconds * 1000))


def system(nodes: int, node: Node, layout: str, network: str = "") -> str:
    """Network, daemons and devices of a pool; `network` are further keys of that table. What a client's processor does is done by the node that serves it: all nodes have
    both, and as much of both."""
    cpu = f"exponential {nanoseconds(node.cpu_us)}ns"
    device = f"{{ rate = {round(node.device)} }}"
    return f"""
[network]
latency = "{nanoseconds(node.latency_us + node.wait_us / 2)}ns"
client-bandwidth = {round(node.link)}
eager = "1GiB"
{network}[server]
threads = {node.cores}
request = "{cpu}"
metadata = "{cpu}"
bus = "1ns"
[[device]]
name = "device"
kind = "measured"
random-read = {device}
random-write = {device}
[[servers]]
name = "daemons"
count = {nodes}
device = "device"
bandwidth = {round(node.link)}
[layout]
{layout}"""


def striped(chunk: int) -> str:
    return f"stripe = {chunk}\n"


class Simulator:
    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.runs = 0

    def run(self, text: str, beside: dict[str, str] | None = None) -> dict:
        """What `tidepool sim run` tells of an experiment, and of the files that it names."""
        path = self.setting.work / "experiment.toml"
        path.write_text(text)
        for name, content in (beside or {}).items():
            (self.setting.work / name).write_text(content)
        command = [str(self.setting.command), "sim", "run", str(path), "--json"]
        self.setting.note(["tidepool", "sim", "run", "experiment.toml", "--json"])
        self.runs += 1
        return json.loads(self.setting.capture(command))["result"]


def opens(ranks: int, files: int, seed: int = 1) -> str:
    """A trace in which each rank opens and closes files, one after the other. Numbers of files come up in random order, so
    each is at a random daemon, as hashing has it."""
    order = [rank for rank in range(ranks) for _ in range(files)]
    random.Random(seed).shuffle(order)
    return "".join(f"{rank} 0 open f{n} 0 0\n{rank} 0 close f{n} 0 0\n" for n, rank in enumerate(order))


def operations_per_second(simulator: Simulator, nodes: int, node: Node, files: int) -> float:
    """An operation is an open and a close with half of its processor time and half of the latency each."""
    half = replace(node, cpu_us=node.cpu_us / 2, latency_us=node.latency_us / 2, wait_us=node.wait_us / 2)
    workload = '[[workload]]\nname = "md"\nkind = "trace"\npath = "opens.txt"\nstamps = "ignored"\n'
    told = simulator.run(system(nodes, half, striped(512 << 10)) + workload, {"opens.txt": opens(nodes * node.procs, files)})
    return nodes * node.procs * files / (told["virtual_ns"] / 1e9)


def bytes_per_second(simulator: Simulator, nodes: int, node: Node, op: str, transfer: int, transfers: int, chunk: int) -> float:
    """A file per process, in order."""
    told = simulator.run(system(nodes, node, striped(chunk)) + files(nodes * node.procs, op, transfer, transfers))
    return nodes * node.procs * transfer * transfers / (told["virtual_ns"] / 1e9)


def files(ranks: int, op: str, transfer: int, transfers: int) -> str:
    """A file per process, in order."""
    return f"""
[[workload]]
name = "io"
kind = "ior"
ranks = {ranks}
op = "{op}"
transfer = {transfer}
block = {transfer * transfers}
files = "per-process"
open = false
"""


def sensitivity(result: Result, what: str, node: Node, parts: dict[str, str], rate, x: float) -> list[str]:
    """Each assumption halved and doubled, all else as it is; rows, and a sentence for each."""
    base = rate(node)
    told = []
    for field, name in parts.items():
        value = getattr(node, field)
        if not value:
            continue
        factors = []
        for factor in (0.5, 2):
            changed = value * factor if isinstance(value, float) else max(1, round(value * factor))
            found = rate(replace(node, **{field: changed})) / base
            factors.append(found)
            result.add(f"{what}, sensitivity", f"{name} x {factor:g}", x, "of the rate", [found], "modelled")
        told.append(f"{name}: x {factors[0]:.2f} when halved, x {factors[1]:.2f} when doubled")
    return told


def error(measured: float, simulated: float) -> float:
    return abs(simulated / measured - 1)


def here(node: Node, procs: int) -> Node:
    """This machine as the one node of a pool: all its cores, and no network."""
    return replace(node, cores=len(os.sched_getaffinity(0)), procs=procs, latency_us=0.001, link=0, device=0)


def say(text: str) -> None:
    print(f"  {text}", file=sys.stderr)


def mean(values) -> float:
    return statistics.fmean(values)
