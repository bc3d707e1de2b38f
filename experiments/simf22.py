"""F22, simulated: creates, stats and removes on up to 512 nodes, from processor times measured on one node here."""

from __future__ import annotations

import figures
import simpool
from harness import Result, Sample, Setting, pick
from metadata import PHASES
from simpool import Node, Simulator

TITLE = "simulated: creates, stats and removes on up to 512 nodes"
CASE = "one shared directory"
PUBLISHED = {"create": 46e6, "stat": 44e6, "remove": 22e6}
PROCS_HERE, QUICK_PROCS_HERE = (1, 2, 4), (1, 2)
MODEL = (
    "simulated: nodes with a daemon and 16 processes each; an operation is one message to the daemon that a hash chooses, and takes the "
    "processor time (client and daemon, exponential around the mean) that it takes here through sockets with one process, and waits "
    "as long as it does here (the rest of its time: processes are woken up), on "
    f"one of {simpool.CORES} cores; {simpool.LATENCY_US:g} us one way between nodes (assumed)"
)
ASSUMED = {"cpu_us": "processor time of an operation", "cores": "cores of a node", "procs": "processes of a node", "latency_us": "latency", "wait_us": "waiting"}


def measure(setting: Setting) -> Result:
    setting.fewer_repeats(1)
    result = Result("nodes")
    result.model = MODEL
    files_here, files = (500, 4) if setting.quick else (20_000, 20)
    counts = QUICK_PROCS_HERE if setting.quick else PROCS_HERE
    measured = {procs: bench(setting, procs, files_here) for procs in counts}
    simulator = Simulator(setting)
    nodes = simpool.QUICK_NODES if setting.quick else simpool.NODES
    for phase in PHASES:
        node = Node(cpu_us=cost(measured[1], phase) * 1e6, wait_us=waited(measured[1], phase) * 1e6)
        result.details[f"microseconds waited per {phase}"] = node.wait_us
        result.details[f"microseconds of processor time per {phase}"] = node.cpu_us
        check(result, simulator, phase, node, measured, files_here)
        rates = {}
        for count in nodes:
            rates[count] = simpool.operations_per_second(simulator, count, node, files)
            result.add(phase, simpool.SIMULATED, count, "operations/s", [rates[count]], "modelled")
        result.add(phase, simpool.PUBLISHED_NAME, 512, "operations/s", [PUBLISHED[phase]], "published")
        last = nodes[-1]
        result.findings.append(
            f"simulated: {phase} on {last} nodes: {rates[last] / 1e6:.2f} M operations/s, {rates[last] / last / rates[1]:.2f} of as many "
            f"single nodes (published on 512: {PUBLISHED[phase] / 1e6:.0f} M/s); {node.cpu_us:.1f} us of processor time each, as measured here"
        )
        told = simpool.sensitivity(
            result, phase, node, ASSUMED, lambda changed: simpool.operations_per_second(simulator, last, changed, files), last
        )
        result.findings += [f"simulated: {phase} on {last} nodes: {one}" for one in told]
    return result


def bench(setting: Setting, procs: int, files: int) -> list[Sample]:
    words = ("--procs", str(procs), "--files", str(files))
    return setting.bench("md", setting.memory, 1, *words, env={"TIDEPOOL_TRANSPORT": "socket"})


def chosen(samples: list[Sample], phase: str) -> list[Sample]:
    return pick(samples, case=CASE, side="pool", phase=phase)


def cost(samples: list[Sample], phase: str) -> float:
    return simpool.mean((s.client_cpu + s.daemon_cpu) / s.operations for s in chosen(samples, phase))


def waited(samples: list[Sample], phase: str) -> float:
    """Of one process: what an operation takes beside processor time."""
    found = chosen(samples, phase)
    return max(0.0, simpool.mean(s.seconds / s.operations for s in found) - cost(samples, phase))


def check(result: Result, simulator: Simulator, phase: str, node: Node, measured: dict[int, list[Sample]], files: int) -> None:
    """This machine, simulated as one node, beside what more processes came to. The model knows one process only."""
    errors = []
    for procs, samples in measured.items():
        rates = [s.rate() for s in chosen(samples, phase)]
        result.add(f"{phase}, one node here", "measured", procs, "operations/s", rates)
        found = simpool.operations_per_second(simulator, 1, simpool.here(node, procs), min(files, 2_000))
        result.add(f"{phase}, one node here", simpool.SIMULATED, procs, "operations/s", [found], "modelled")
        errors.append(f"{100 * simpool.error(simpool.mean(rates), found):.0f} % with {procs}")
    result.findings.append(f"{phase} on this machine alone, by processes: the simulation is off by {', '.join(errors)} (1 is what it was fitted to)")


def draw(report: dict, rows: list[dict]):
    figure, axes = figures.panels(2 * len(PHASES), columns=len(PHASES), height=3.8)
    for number, phase in enumerate(PHASES):
        figures.lines(axes[number], rows, phase, report["x_label"], log_x=True, log_y=True)
        figures.lines(axes[number + len(PHASES)], rows, f"{phase}, one node here", "processes")
    figures.legend_below(figure, axes, columns=3)
    return figure
