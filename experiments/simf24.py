"""F24, simulated: a file per process on up to 512 nodes, from processor times measured on one node here."""

from __future__ import annotations

import figures
import simpool
from harness import Result, Sample, Setting, pick
from simpool import Node, Simulator

TITLE = "simulated: a file per process on up to 512 nodes, as a share of the devices"
PHASES = ("write", "read")
SIZES = {8 << 10: "8.0 KiB", 64 << 10: "64.0 KiB", 1 << 20: "1.0 MiB", 64 << 20: "64.0 MiB"}
QUICK_SIZES = (64 << 10, 1 << 20)
CHUNK = 512 << 10
GIB = 1 << 30
# At 64 MiB; and their share of the SSDs' peak.
PUBLISHED = {"write": (141 * GIB, 0.80), "read": (204 * GIB, 0.70)}
MODEL = (
    "simulated: nodes with a daemon, 16 processes and a device each; the device's rate is the paper's peak of 512 by 512 (176 GiB/s of "
    "writes, 291 of reads), a chunk of 512 KiB takes the processor time (client and daemon) that it takes here through sockets, in "
    f"memory; {simpool.CORES} cores, 100 Gbit/s and {simpool.LATENCY_US:g} us one way (assumed); chunks in turn over all daemons"
)
ASSUMED = {
    "cpu_us": "processor time of a chunk",
    "cores": "cores of a node",
    "procs": "processes of a node",
    "latency_us": "latency",
    "link": "a node's link",
    "device": "a node's device",
}


def measure(setting: Setting) -> Result:
    setting.fewer_repeats(1)
    result = Result("nodes")
    result.model = MODEL
    sizes = QUICK_SIZES if setting.quick else tuple(SIZES)
    samples = bench(setting, sizes)
    simulator = Simulator(setting)
    nodes = simpool.QUICK_NODES if setting.quick else simpool.NODES
    for phase in PHASES:
        rate, share = PUBLISHED[phase]
        device = rate / share / 512
        for size in sizes:
            node = Node(cpu_us=cost(samples, phase, size) * 1e6, link=float(simpool.LINK), device=device)
            result.details[f"microseconds of processor time per request, {phase}, {SIZES[size]}"] = node.cpu_us
            for count in nodes:
                found = simulated(simulator, count, node, phase, size)
                what = f"{phase}, share of the devices"
                result.add(phase, f"{SIZES[size]}, {simpool.SIMULATED}", count, "GiB/s", [found / GIB], "modelled")
                result.add(what, f"{SIZES[size]}, {simpool.SIMULATED}", count, "%", [100 * found / count / device], "modelled")
            last = nodes[-1]
            result.findings.append(
                f"simulated: {phase} of {SIZES[size]} on {last} nodes: {found / GIB:,.0f} GiB/s, {100 * found / last / device:.0f} % of the devices"
            )
        result.add(phase, simpool.PUBLISHED_NAME, 512, "GiB/s", [rate / GIB], "published")
        result.add(f"{phase}, share of the devices", simpool.PUBLISHED_NAME, 512, "%", [100 * share], "published")
        result.findings.append(f"published: {phase} of 64 MiB on 512 nodes: {rate / GIB:.0f} GiB/s, {100 * share:.0f} % of the devices' peak")
        # Half as many nodes, and one transfer each, say as much, and not in an hour.
        size, some = sizes[-1], nodes[-1] if setting.quick else 64
        told = simpool.sensitivity(
            result, phase, node, ASSUMED, lambda changed: simulated(simulator, some, changed, phase, size), some
        )
        result.findings += [f"simulated: {phase} of {SIZES[size]} on {some} nodes: {one}" for one in told]
    return result


def simulated(simulator: Simulator, nodes: int, node: Node, phase: str, size: int) -> float:
    # As many requests of each process that its start and end count little; fewer where each is many chunks.
    transfers = 64 if size < CHUNK else max(4, (64 << 20) // size)
    return simpool.bytes_per_second(simulator, nodes, node, phase, size, transfers, CHUNK)


def bench(setting: Setting, sizes: tuple[int, ...]) -> list[Sample]:
    words = ("--procs", "2", "--file-size", "16MiB" if setting.quick else "256MiB", "--sizes", ",".join(map(str, sizes)))
    more = ("--layouts", "files", "--orders", "sequential", "--chunk-size", "512KiB")
    return setting.bench("io", setting.memory, 1, *words, *more, env={"TIDEPOOL_TRANSPORT": "socket"})


def cost(samples: list[Sample], phase: str, size: int) -> float:
    """Seconds of a chunk, or of a request that is less."""
    found = pick(samples, case=f"file per process, sequential, {SIZES[size]}", side="pool", phase=phase)
    pieces = max(1, size // CHUNK)
    return simpool.mean((s.client_cpu + s.daemon_cpu) / s.operations / pieces for s in found)


def draw(report: dict, rows: list[dict]):
    whats = [name for phase in PHASES for name in (phase, f"{phase}, share of the devices")]
    figure, axes = figures.panels(len(whats), columns=2, height=3.8, width=5.2)
    for one, what in zip(axes, whats):
        figures.lines(one, rows, what, report["x_label"], log_x=True, log_y=what in PHASES)
    figures.legend_below(figure, axes, columns=2)
    return figure
