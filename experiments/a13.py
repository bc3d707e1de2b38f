"""A13 (ADA-FS 2019, Figure 2b; 2020, Figure 11): writing with fewer core switches, with pools at leaf switches and without."""

from __future__ import annotations

from pathlib import Path

import figures
from harness import Result, Setting
from switches import Fabric, SwitchedPool, flow, permitted, topology

TITLE = "writing with 6, 3 and 1 core switches, with pools at leaf switches and without"
CORES = (6, 3, 1)
FULL = CORES[0]
POOLS, WIDE = "pools at leaf switches", "without pools"
PLACEMENTS = {POOLS: "group", WIDE: "wide"}
# The fabric in small. What leaves a leaf without pools is half of what its two nodes write, which is what one device takes.
LEAVES, PER_LEAF = 2, 2
DEVICE_MBIT = 250
# Of a leaf's link to one core switch: six carry a little more than what leaves the leaf.
UNIT_MBIT = 50
# Of each node's file.
FILE_BYTES, QUICK_FILE_BYTES = 64 << 20, 6 << 20
MEASURED = f"{LEAVES * PER_LEAF} nodes at {LEAVES} leaf switches"
CROSSED = f"{MEASURED}, bytes between leaves in percent of the data"
# The paper's island: 56 Gbit/s from each leaf to each core switch.
ISLAND = Path(__file__).resolve().parent / "island.toml"
# Of a node's device: what BeeOND reached for each of 256 nodes (129.95 GiB/s in Table 1), and the NVMe drive of Figure 2a.
ISLAND_DEVICES = {"devices of 545 MB/s": 545e6, "devices of 2,000 MB/s": 2e9}
ISLAND_CALLED = "240 nodes at 12 leaf switches, {}"
# With pools the rate may be so much below that with all core switches.
BAR = 0.95
MODEL = (
    "flows: tidepool topology flow: each writer is one flow at its max-min fair rate, to all nodes or to those at its leaf in equal "
    "shares, over all core switches evenly; no protocols, metadata or processors"
)


def off(cores: int) -> str:
    return f"core[{cores + 1}-{FULL}]" if cores < FULL else ""


def measure(setting: Setting) -> Result:
    setting.fewer_repeats(1)
    result = Result("core switches")
    result.model = MODEL
    measured = permitted()
    if measured:
        in_small(setting, result)
    else:
        setting.steps.add("network name spaces are not permitted here: nothing is measured, there is only the model")
    for called, rate in ISLAND_DEVICES.items():
        for series in PLACEMENTS:
            for cores in CORES:
                total = flow(setting, ISLAND, rate, off(cores), series == POOLS)["total_bytes_per_second"] / 1e9
                result.add(ISLAND_CALLED.format(called), f"{series}, flows", cores, "GB/s", [total], "modelled")
    conclude(result, measured)
    return result


def in_small(setting: Setting, result: Result) -> None:
    size = QUICK_FILE_BYTES if setting.quick else FILE_BYTES
    setting.need_space(setting.memory, LEAVES * PER_LEAF * size)
    result.details.update(bytes_per_node=size, device_mbit=DEVICE_MBIT, mbit_per_leaf_and_core_switch=UNIT_MBIT)
    rates: dict[tuple[str, int], list[float]] = {}
    crossed: dict[tuple[str, int], list[float]] = {}
    with Fabric(setting, LEAVES, PER_LEAF) as fabric:
        fabric.shape_devices(DEVICE_MBIT, DEVICE_MBIT)
        for _ in range(setting.repeats):
            for cores in CORES:
                fabric.shape_core(cores * UNIT_MBIT)
                for series, placement in PLACEMENTS.items():
                    with SwitchedPool(fabric, list(fabric.nodes), placement) as pool:
                        moved = pool.move("write", size)
                    rates.setdefault((series, cores), []).append(moved.rate)
                    # Each byte between two leaves goes up from the one and down to the other.
                    crossed.setdefault((series, cores), []).append(100 * moved.core_share / 2)
        small = setting.work / "small.toml"
        small.write_text(topology(LEAVES, PER_LEAF, FULL, 10, UNIT_MBIT / 1000))
        for (series, cores), values in rates.items():
            result.add(MEASURED, series, cores, "MB/s", values)
            result.add(CROSSED, series, cores, "%", crossed[series, cores])
            total = flow(setting, small, DEVICE_MBIT / 8 * 1e6, off(cores), series == POOLS)["total_bytes_per_second"]
            result.add(MEASURED, f"{series}, flows", cores, "MB/s", [total / 1e6], "modelled")


def conclude(result: Result, measured: bool) -> None:
    if measured:
        for series in PLACEMENTS:
            result.findings.append(told(result, MEASURED, series))
            result.findings.append(told(result, MEASURED, f"{series}, flows"))
            shares = [result.mean(CROSSED, series, cores) for cores in CORES]
            share = f"{min(shares):.2f} to {max(shares):.2f}"
            result.findings.append(f"{series}: {share} % of the data went between leaves, by the links' byte counters")
        ratio = result.mean(MEASURED, POOLS, FULL) / result.mean(MEASURED, WIDE, FULL)
        result.findings.append(
            f"measured: with all core switches a pool at each leaf is {ratio:.2f} times as fast as none (published: a minimal loss)"
        )
        result.findings.append(result.widest())
    else:
        result.findings.append("nothing was measured: network name spaces need root")
    for called in ISLAND_DEVICES:
        for series in PLACEMENTS:
            result.findings.append(told(result, ISLAND_CALLED.format(called), f"{series}, flows"))
    result.findings.append(
        "published: the text of Figure 2b gives no numbers, only that throughput drops with fewer core switches and does not with pools"
    )


def told(result: Result, what: str, series: str) -> str:
    row = next(r for r in result.rows if (r.what, r.series) == (what, series))
    full = result.mean(what, series, FULL)
    shares = {cores: result.mean(what, series, cores) / full for cores in CORES[1:]}
    text = ", ".join(f"{share:.2f} with {cores}" for cores, share in shares.items())
    verdict = ""
    if series.startswith(POOLS):
        kept = all(share >= BAR for share in shares.values())
        verdict = "; within 5 %" if kept else "; NOT within 5 %"
    return f"{what}, {series} ({row.kind}): {full:,.0f} {row.unit} with {FULL} core switches, of that {text}{verdict}"


def draw(report: dict, rows: list[dict]):
    whats = [what for what in dict.fromkeys(row["what"] for row in rows) if what != CROSSED]
    figure, axes = figures.panels(len(whats), width=4.8)
    for one, what in zip(axes, whats):
        figures.bars(one, rows, what, report["x_label"])
    figures.legend_below(figure, axes)
    return figure
