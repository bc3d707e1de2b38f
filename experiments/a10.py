"""A10, A11, A20 (ADA-FS 2019, Figure 2a; 2020, Figure 10): writing and reading by the number of nodes, up to NVMe on 512."""

from __future__ import annotations

import statistics

import figures
from harness import Result, Setting, pick, sd_percent
from switches import Fabric, SwitchedPool, permitted

TITLE = "writing and reading by the number of nodes, and what NVMe would give"
COUNTS, QUICK_COUNTS = [1, 2, 4], [1, 2]
# A device of a node, as a link: an 80th of the NVMe drive, so that two cores can feed four.
SCALE = 80
MBIT = 8
# Of each node's file; of all files together where all daemons share one disk.
FILE_BYTES, QUICK_FILE_BYTES = 96 << 20, 8 << 20
SHARED_MIB, QUICK_SHARED_MIB = 512, 16
PHASES = ("write", "read")
# By phase, series and number of nodes.
Rates = dict[tuple[str, str, int], list[float]]
OWN, SHARED = "a device of its own for each node", "all daemons on one disk"
HASHED, IN_TURN = "chunks by hashing (--stripe 0)", "chunks in turn (default)"
PER_NODE = "{}, {}, for each node"
# How far a node's share may be from that of one node alone.
BAR = 0.15
MODELLED_COUNTS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
SUM, REACHED = "NVMe, sum of the devices", "NVMe, as much of it as was reached here"
NVME = "{}, NVMe devices"
# Table 1: nodes, GiB/s.
PUBLISHED = [(8, 2.79), (16, 6.74), (32, 10.83), (64, 28.37), (128, 54.06), (256, 129.95)]
MODEL = (
    "nodes times the speed of a device (the paper's dotted line), and times the share of the devices' speed that the most nodes "
    "here reached as well, with chunks in turn; that nothing else becomes narrow on the way to 512 nodes is assumed"
)


def speeds(setting: Setting) -> dict[str, float]:
    """MB/s of the assumed device."""
    return {"write": setting.args.device_write, "read": setting.args.device_read}


def measure(setting: Setting) -> Result:
    counts = QUICK_COUNTS if setting.quick else COUNTS
    setting.fewer_repeats(2)
    result = Result("nodes")
    result.model = MODEL
    devices = {phase: speed / SCALE for phase, speed in speeds(setting).items()}
    result.details.update({"MB/s of a device here": devices, "MB/s of the assumed device": speeds(setting)})
    if permitted():
        with_own_devices(setting, result, counts, devices)
        for series in (HASHED, IN_TURN):
            told(result, OWN, series, counts, devices)
    else:
        setting.steps.add("network name spaces are not permitted here: no node has a device of its own")
        result.findings.append(f"{OWN}: not measured, because network name spaces need root")
    on_one_disk(setting, result, counts)
    told(result, SHARED, HASHED, counts, {})
    extrapolate(setting, result, counts, devices)
    result.findings.append(result.widest())
    return result


def with_own_devices(setting: Setting, result: Result, counts: list[int], devices: dict[str, float]) -> None:
    size = QUICK_FILE_BYTES if setting.quick else FILE_BYTES
    setting.need_space(setting.memory, counts[-1] * size)
    result.details["bytes of each node's file"] = size
    rates: Rates = {}
    with Fabric(setting, 1, counts[-1]) as fabric:
        fabric.shape_devices(devices["write"] * MBIT, devices["read"] * MBIT)
        for _ in range(setting.repeats):
            # All numbers of nodes in each repeat, so that what else happens on the machine meets all alike.
            for count in counts:
                for series, switches in ((HASHED, ["--stripe", "0"]), (IN_TURN, [])):
                    with SwitchedPool(fabric, list(fabric.nodes)[:count], "wide", *switches) as pool:
                        for phase in PHASES:
                            rates.setdefault((phase, series, count), []).append(pool.move(phase, size).rate)
    add(result, OWN, rates)


def on_one_disk(setting: Setting, result: Result, counts: list[int]) -> None:
    megabytes = QUICK_SHARED_MIB if setting.quick else SHARED_MIB
    setting.need_space(setting.disk, 2 * megabytes << 20)
    rates: Rates = {}
    for _ in range(setting.repeats):
        for count in counts:
            work = ("--layouts", "files", "--orders", "sequential", "--sizes", "1MiB", "--procs", str(count))
            samples = setting.bench("io", setting.disk, count, *work, "--file-size", f"{megabytes // count}MiB", repeats=1)
            for phase in PHASES:
                for sample in pick(samples, side="pool", phase=phase):
                    rates.setdefault((phase, HASHED, count), []).append(sample.bandwidth() * (1 << 20) / 1e6)
    add(result, SHARED, rates)


def add(result: Result, how: str, rates: Rates) -> None:
    for (phase, series, count), values in rates.items():
        result.add(f"{phase}, {how}", series, count, "MB/s", values)
        result.add(PER_NODE.format(phase, how), series, count, "MB/s", [value / count for value in values])


def told(result: Result, how: str, series: str, counts: list[int], devices: dict[str, float]) -> None:
    """Findings on one series; without devices there is no share of theirs."""
    for phase in PHASES:
        wanted = [(f"{phase}, {how}", series, count) for count in counts]
        rows = [next(r for r in result.rows if (r.what, r.series, r.x) == one) for one in wanted]
        rates = ", ".join(
            f"{count}: {statistics.fmean(row.values):,.0f} ({min(row.values):,.0f} to {max(row.values):,.0f}, "
            f"sd {sd_percent(row.values) or 0:.1f} %)"
            for count, row in zip(counts, rows)
        )
        shares = [result.mean(PER_NODE.format(phase, how), series, count) for count in counts]
        change = max(abs(share / shares[0] - 1) for share in shares)
        text = f"{how}, {series}: {phase} in MB/s by nodes: {rates}"
        if devices:
            text += f"; a node's share differs by {100 * change:.0f} % from that of one alone: "
            text += "within 15 %" if change <= BAR else "NOT within 15 %"
            text += f"; {shares[-1] / devices[phase]:.2f} of the devices' {devices[phase]:.1f} MB/s each"
        result.findings.append(text)


def extrapolate(setting: Setting, result: Result, counts: list[int], devices: dict[str, float]) -> None:
    for phase, speed in speeds(setting).items():
        what = NVME.format(phase)
        wanted = (PER_NODE.format(phase, OWN), IN_TURN, counts[-1])
        here = [r for r in result.rows if (r.what, r.series, r.x) == wanted]
        reached = [statistics.fmean(row.values) / devices[phase] for row in here]
        for count in MODELLED_COUNTS:
            result.add(what, SUM, count, "GB/s", [count * speed / 1e3], "modelled")
            for share in reached:
                result.add(what, REACHED, count, "GB/s", [count * speed * share / 1e3], "modelled")
        last = f"{MODELLED_COUNTS[-1] * speed / 1e3:,.0f} GB/s"
        also = "".join(f", {MODELLED_COUNTS[-1] * speed * share / 1e3:,.0f} GB/s as much as was reached" for share in reached)
        result.findings.append(
            f"modelled: {phase} on {MODELLED_COUNTS[-1]} nodes with devices of {speed:,.0f} MB/s: {last}{also}"
        )
    for nodes, gib in PUBLISHED:
        # The table does not say whether it is of writing or reading; it stands beside writing.
        result.add(NVME.format("write"), "BeeOND on SATA SSDs, Table 1", nodes, "GB/s", [gib * 1.073741824], "published")


def draw(report: dict, rows: list[dict]):
    hows = [how for how in (OWN, SHARED) if any(row["what"].endswith(how) for row in rows)]
    whats = [f"{phase}, {how}" for how in hows for phase in PHASES]
    modelled = [NVME.format(phase) for phase in PHASES]
    figure, axes = figures.panels(len(whats) + len(modelled), columns=2, width=5.2, height=3.6)
    for one, what in zip(axes, whats + modelled):
        far = what in modelled
        figures.lines(one, rows, what, report["x_label"], log_x=far, log_y=far)
    figures.legend_below(figure, axes)
    return figure
