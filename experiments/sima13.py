"""A13, simulated: writing with 6, 3 and 1 core switches on 240 nodes, with pools at leaf switches and without."""

from __future__ import annotations

import figures
import simpool
from harness import Result, Setting, pick
from simpool import Node, Simulator

TITLE = "simulated: writing with 6, 3 and 1 core switches, 240 nodes, with pools at leaf switches and without"
CORE_SWITCHES = (6, 3, 1)
LEAVES, PER_LEAF = 12, 20
# Of a node's link, and of a leaf's link to each core switch: 56 Gbit/s.
LINK = 56e9 / 8
DEVICES = {"devices of 545 MB/s": 545e6, "devices of 2,000 MB/s": 2e9}
POOLS, WIDE = "pools at leaf switches", "without pools"
TRANSFER, CHUNK = 8 << 20, 512 << 10
BAR = 0.95
MODEL = (
    "simulated: a process on each of 240 nodes writes a file of its own, chunks in turn over all daemons, or over those at its leaf, through "
    "12 leaf switches with a link to each core switch; a message takes a shortest way, drawn from who sends what to whom; processor time of a "
    "chunk as measured here through sockets"
)
ASSUMED = {"cpu_us": "processor time of a chunk", "latency_us": "latency", "link": "every link", "device": "a node's device"}


def switches(leaves: int, link: float) -> str:
    """A topology file: leaf switches with their nodes, all of them below each core switch."""
    speed = f"gigabits-per-second = {link * 8 / 1e9}\n"
    text = ""
    for leaf in range(leaves):
        first = leaf * PER_LEAF + 1
        text += f'[[switch]]\nname = "leaf{leaf + 1}"\nhosts = "node[{first:03}-{first + PER_LEAF - 1:03}]"\n{speed}'
    for core in range(CORE_SWITCHES[0]):
        text += f'[[switch]]\nname = "core{core + 1}"\nswitches = "leaf[1-{leaves}]"\n{speed}'
    return text


def measure(setting: Setting) -> Result:
    setting.fewer_repeats(1)
    result = Result("core switches")
    result.model = MODEL
    words = ("--procs", "2", "--file-size", "16MiB" if setting.quick else "256MiB", "--sizes", "1MiB", "--layouts", "files")
    samples = setting.bench(
        "io", setting.memory, 1, *words, "--orders", "sequential", "--chunk-size", "512KiB", env={"TIDEPOOL_TRANSPORT": "socket"}
    )
    found = pick(samples, case="file per process, sequential, 1.0 MiB", side="pool", phase="write")
    cpu = simpool.mean((s.client_cpu + s.daemon_cpu) / s.operations / 2 for s in found) * 1e6
    result.details["microseconds of processor time per chunk"] = cpu
    simulator = Simulator(setting)
    for called, device in DEVICES.items():
        node = Node(cpu_us=cpu, procs=1, link=LINK, device=device)
        # Pools at leaves do not touch each other: one of them stands for all.
        for series, leaves in ((POOLS, 1), (WIDE, LEAVES)):
            rates, crossed = {}, {}
            for cores in CORE_SWITCHES:
                rate, crossed[cores] = simulated(setting, simulator, leaves, cores, node)
                rates[cores] = rate * LEAVES / leaves
                result.add(called, f"{series}, {simpool.SIMULATED}", cores, "GB/s", [rates[cores] / 1e9], "modelled")
            result.findings.append(told(called, series, rates) + f"; {100 * crossed[CORE_SWITCHES[0]]:.0f} % of the data crossed core switches")
            if series == WIDE:
                sentences = simpool.sensitivity(
                    result, called, node, ASSUMED, lambda changed: simulated(setting, simulator, LEAVES, 1, changed)[0], 1
                )
                result.findings += [f"simulated: {called}, {series}, 1 core switch: {one}" for one in sentences]
    result.findings.append(
        "published: the text of Figure 2b gives no numbers, only that throughput drops with fewer core switches and does not with pools"
    )
    return result


def simulated(setting: Setting, simulator: Simulator, leaves: int, cores: int, node: Node) -> tuple[float, float]:
    """Bytes/s of a pool on so many leaves, and which part of its data crossed core switches."""
    nodes, transfers = leaves * PER_LEAF, 2 if setting.quick else 32
    off = ", ".join(f'"core{core + 1}"' for core in range(cores, CORE_SWITCHES[0]))
    network = f'topology = "switches.toml"\nnodes = "together"\noff = [{off}]\n'
    layout = f'kind = "pool"\nplacement = "wide"\nin-turn = {nodes}\nstripe = {CHUNK}\n'
    text = simpool.system(nodes, node, layout, network) + simpool.files(nodes, "write", TRANSFER, transfers)
    found = simulator.run(text, {"switches.toml": switches(leaves, node.link)})
    written = nodes * TRANSFER * transfers
    # Each message that crosses takes two links between switches.
    return written / (found["virtual_ns"] / 1e9), found["bytes_between_switches"] / 2 / written


def told(called: str, series: str, rates: dict[int, float]) -> str:
    full = rates[CORE_SWITCHES[0]]
    parts = ", ".join(f"{rates[cores] / full:.2f} with {cores}" for cores in CORE_SWITCHES[1:])
    verdict = ""
    if series == POOLS:
        verdict = "; within 5 %" if all(rate / full >= BAR for rate in rates.values()) else "; NOT within 5 %"
    return f"simulated: {called}, {series}: {full / 1e9:,.0f} GB/s with {CORE_SWITCHES[0]} core switches, of that {parts}{verdict}"


def draw(report: dict, rows: list[dict]):
    whats = [what for what in dict.fromkeys(row["what"] for row in rows) if not what.endswith("sensitivity")]
    figure, axes = figures.panels(len(whats), width=4.8)
    for one, what in zip(axes, whats):
        figures.bars(one, rows, what, report["x_label"])
    figures.legend_below(figure, axes)
    return figure
