"""J4 (Miranda et al. 2019, Figure 5): what requests to a stager at another node cost, one by one and 16 at a time."""

from __future__ import annotations

import figures
from harness import Result, Setting
from stagers import ECHO_PORT, IN_FLIGHT, PORT, Net, Process, Stager, Together

TITLE = "requests to a stager at another node: rate and latency"
WORKS = ("plain", "ping", "look")
NAMES = {"plain": "plain message over TCP", "ping": "null request", "look": "look at a file"}
COUNTS, QUICK_COUNTS = [1, 2, 4, 8, 16], [1, 2]
# Requests of all nodes of a measurement together.
TOTAL, QUICK_TOTAL = 40_000, 640
RATE, LATENCY = "requests/s, {} in flight", "latency, {} in flight"
PUBLISHED_NODES, PUBLISHED_RATE, PUBLISHED_US = 32, 45_000, 900


def measure(setting: Setting) -> Result:
    setting.fewer_repeats(2)
    counts = QUICK_COUNTS if setting.quick else COUNTS
    result = Result("nodes that ask")
    found: dict[tuple[str, int, int], list[Together]] = {}
    with Net(setting, counts[-1]) as net:
        listen = "0.0.0.0" if net.real else "127.0.0.1"
        echo = [*net.server(), str(setting.command), "bench", "echo", "--listen", f"{listen}:{ECHO_PORT}"]
        with Process(echo), Stager(setting, net.server(), f"{listen}:{PORT}") as stager:
            # A file that requests can ask about.
            (stager.dir / "b" / "file").write_bytes(b"")
            for _ in range(setting.repeats):
                for nodes in counts:
                    for in_flight in IN_FLIGHT:
                        for work in WORKS:
                            one = ask(setting, net, stager, nodes, in_flight, work)
                            found.setdefault((work, nodes, in_flight), []).append(one)
    for (work, nodes, in_flight), runs in found.items():
        name = NAMES[work]
        result.add(RATE.format(in_flight), name, nodes, "requests/s", [run.per_second() for run in runs])
        result.add(LATENCY.format(in_flight), name, nodes, "us, p50", [run.p50_us() for run in runs])
    publish(result)
    conclude(result, counts)
    return result


def ask(setting: Setting, net: Net, stager: Stager, nodes: int, in_flight: int, work: str) -> Together:
    count = max(in_flight, (QUICK_TOTAL if setting.quick else TOTAL) // nodes)
    words = ["--work", work, "--count", str(count), "--in-flight", str(in_flight)]
    setting.note(["tidepool", "bench", "remote-client", *words])
    port = ECHO_PORT if work == "plain" else PORT
    return Together(setting, net, stager, nodes, *words, port=port)


def publish(result: Result) -> None:
    """The text gives one rate, of 16 in flight by the figure, and the worst latency."""
    paper = "NORNS, ofi+tcp, 48 cores a node"
    result.add(RATE.format(16), paper, PUBLISHED_NODES, "requests/s", [PUBLISHED_RATE], "published")
    result.add(LATENCY.format(16), f"{paper}, worst", PUBLISHED_NODES, "us, p50", [PUBLISHED_US], "published")


def conclude(result: Result, counts: list[int]) -> None:
    def mean(what: str, work: str, in_flight: int, nodes: int) -> float:
        return result.mean(what.format(in_flight), NAMES[work], nodes)

    for work in ("ping", "look"):
        one = [mean(LATENCY, work, 1, 1), mean(LATENCY, "plain", 1, 1)]
        result.findings.append(
            f"{NAMES[work]}, one by one from one node: p50 {one[0]:.1f} us, {one[0] / one[1]:.2f} of a plain message ({one[1]:.1f} us)"
        )
        for nodes in counts:
            rates = [mean(RATE, work, n, nodes) for n in IN_FLIGHT]
            plain = [mean(RATE, "plain", n, nodes) for n in IN_FLIGHT]
            result.findings.append(
                f"{NAMES[work]}, {nodes} node(s): {rates[0]:,.0f} requests/s one by one, {rates[1]:,.0f} with 16 in flight "
                f"({rates[1] / rates[0]:.2f} times); {rates[0] / plain[0]:.2f} and {rates[1] / plain[1]:.2f} of plain messages"
            )
    result.findings.append(
        f"published: {PUBLISHED_RATE:,} requests/s, {PUBLISHED_US} us in the worst case, {PUBLISHED_NODES} nodes"
    )
    result.findings.append(result.widest())


def draw(report: dict, rows: list[dict]):
    whats = [what.format(n) for what in (RATE, LATENCY) for n in IN_FLIGHT]
    figure, axes = figures.panels(len(whats), columns=2)
    for one, what in zip(axes, whats):
        figures.lines(one, rows, what, report["x_label"], log_x=True)
    figures.legend_below(figure, axes)
    return figure
