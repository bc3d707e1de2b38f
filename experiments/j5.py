"""J5 (Miranda et al. 2019, Figures 6 and 7): bandwidth of reads and writes at another node's stager."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass

import figures
from harness import Failed, Result, Setting
from stagers import IN_FLIGHT, IPERF_PORT, PORT, Net, Process, Stager, Together

TITLE = "reads and writes at another node: bandwidth beside iperf3"
# Of the clients' memory, moved in requests of 16 MiB.
READ, WRITE = "reads, all clients", "writes, all clients"
WORKS = {READ: "pull", WRITE: "push"}
# A link that processors do not limit, in Mbit/s, and what its quantities are called.
RATE = 1000
SHAPED = "{}, link of 1 Gbit/s"
LINK = "iperf3, as many streams"
# Bytes of all clients of a measurement together, and over the slow link.
TOTAL, QUICK_TOTAL = 2 << 30, 64 << 20
SHAPED_TOTAL = 256 << 20
COUNTS, QUICK_COUNTS = [1, 2, 4, 8, 16, 32], [1, 2]
BUFFER = 16 << 20
MIB = 1 << 20
PUBLISHED_CLIENTS = 32
PUBLISHED = {READ: (55.6, 1.7), WRITE: (59.7, 1.8)}


def measure(setting: Setting) -> Result:
    setting.fewer_repeats(1)
    counts, total = (QUICK_COUNTS, QUICK_TOTAL) if setting.quick else (COUNTS, TOTAL)
    setting.need_space(setting.memory, 2 * total)
    result = Result("clients")
    iperf = shutil.which("iperf3") is not None
    with Net(setting, 1) as net:
        listen = "0.0.0.0" if net.real else "127.0.0.1"
        with Stager(setting, net.server(), f"{listen}:{PORT}") as stager:
            run = Run(setting, net, stager, counts, iperf)
            run.all(result, "{}", total)
            if net.shape(RATE):
                run.all(result, SHAPED, min(total, SHAPED_TOTAL))
    for what, (together, _) in PUBLISHED.items():
        result.add(what, "NORNS, ofi+tcp, a node each", PUBLISHED_CLIENTS, "MiB/s", [together * 1024], "published")
    conclude(result, counts, iperf)
    return result


@dataclass
class Run:
    setting: Setting
    net: Net
    stager: Stager
    counts: list[int]
    iperf: bool

    def all(self, result: Result, called: str, total: int) -> None:
        found: dict[tuple[str, str, int], list[float]] = {}
        for _ in range(self.setting.repeats):
            for clients in self.counts:
                for what, work in WORKS.items():
                    key = called.format(what)
                    for n in IN_FLIGHT:
                        rate = move(self.setting, self.net, self.stager, (clients, n), work, total)
                        found.setdefault((key, f"tidepool, {n} in flight", clients), []).append(rate)
                    if self.iperf:
                        rate = compare(self.setting, self.net, clients, total, reverse=what == READ)
                        found.setdefault((key, LINK, clients), []).append(rate)
        for (what, series, clients), rates in found.items():
            result.add(what, series, clients, "MiB/s", rates)


def move(
    setting: Setting, net: Net, stager: Stager, shape: tuple[int, int], work: str, total: int
) -> float:
    """MiB per second of all clients. Their files exist before: what pages cost is not the network's."""
    clients, in_flight = shape
    each = max(BUFFER, total // clients // BUFFER * BUFFER)
    words = ["--work", work, "--count", str(each), "--in-flight", str(in_flight)]
    setting.note(["tidepool", "bench", "remote-client", *words])
    run = Together(setting, net, stager, clients, *words)
    return each * clients / run.seconds / MIB


def compare(setting: Setting, net: Net, clients: int, total: int, reverse: bool) -> float:
    server = [*net.server(), "iperf3", "-s", "-1", "-p", str(IPERF_PORT), "--forceflush"]
    command = [*net.client(0), "iperf3", "-c", net.here[0], "-p", str(IPERF_PORT), "-P", str(clients), "-J"]
    command += ["-n", str(total), *(["-R"] if reverse else [])]
    setting.note(command[len(net.client(0)) :])
    with Process(server):
        told = json.loads(setting.capture(command))
    if "error" in told:
        raise Failed(f"iperf3: {told['error']}")
    return told["end"]["sum_received"]["bits_per_second"] / 8 / MIB


def conclude(result: Result, counts: list[int], iperf: bool) -> None:
    for what in dict.fromkeys(row.what for row in result.rows):
        for in_flight in IN_FLIGHT:
            rates = [result.mean(what, f"tidepool, {in_flight} in flight", n) for n in counts]
            told = ", ".join(f"{rate:,.0f}" for rate in rates)
            text = f"{what}, {in_flight} in flight, by clients ({', '.join(map(str, counts))}): {told} MiB/s"
            if iperf:
                links = [result.mean(what, LINK, n) for n in counts]
                text += f"; of iperf3: {', '.join(f'{r / l:.2f}' for r, l in zip(rates, links))}"
            result.findings.append(text)
    if not iperf:
        result.findings.append("there is no iperf3 here: no relation to the link's own bandwidth")
    for what, (together, each) in PUBLISHED.items():
        result.findings.append(
            f"published: {what} {together} GiB/s, {each} of each of {PUBLISHED_CLIENTS} nodes on Omni-Path"
        )
    result.findings.append(result.widest())


def draw(report: dict, rows: list[dict]):
    whats = list(dict.fromkeys(row["what"] for row in rows))
    figure, axes = figures.panels(len(whats), width=5.4, columns=2)
    for one, what in zip(axes, whats):
        # On the slow link all lie near its rate, and the paper's do not.
        figures.lines(one, rows, what, report["x_label"], log_x=True, log_y=what in WORKS)
    figures.legend_below(figure, axes)
    return figure
