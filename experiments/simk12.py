"""K12, simulated: bandwidth against processes on the paper's test bed."""

from __future__ import annotations

import copy

from harness import Result, Setting
from simtiers import at, begin, draw

__all__ = ["TITLE", "draw", "measure"]
TITLE = "simulated: bandwidth against processes, contiguous and random, burst buffer and PFS (S3 Figure 2)"
COUNTS = (2, 4, 8, 16, 32, 64)
PATTERNS = {"contiguous": "sequential", "random": "random"}
# Where one application writes with `baseline`: the tier is put in the PFS's place.
TIERS = {"burst buffer": "burst", "PFS": "pfs"}
PAPER = "the text (II-B): rises, then falls; the burst buffer's falls less and is much higher. No numbers; none read off the figure"


def measure(setting: Setting) -> Result:
    result, simulator, base = begin("processes", setting, PAPER)
    off = []
    for name, tier in TIERS.items():
        for shown, pattern in PATTERNS.items():
            found = {}
            for count in COUNTS:
                table = copy.deepcopy(base)
                table["pfs"] = table.pop(tier) if tier == "burst" else table["pfs"]
                table.pop("burst", None)
                table["application"][0] |= {"copies": 1, "nodes": min(count, 8), "processes": count, "steps": 1, "pattern": pattern}
                del table["application"][0]["io-ratio"], table["application"][0]["alone-seconds"]
                table["application"][0]["compute-seconds"] = 0
                seconds = simulator(table, ("baseline",))["baseline"]["io_mean_seconds"]
                rate = count * table["application"][0]["bytes"] / seconds / 1e6
                found[count] = rate
                wanted = at(table["pfs"][pattern], count) / 1e6
                off.append(abs(rate / wanted - 1))
                result.add(shown, f"{name}, simulated", count, "MB/s", [rate], "modelled")
                result.add(shown, f"{name}, the curve put in", count, "MB/s", [wanted], "modelled")
            peak = max(found, key=lambda n: found[n])
            fall = 100 * (1 - found[64] / found[peak])
            result.findings.append(f"{name}, {shown}: {found[peak]:.0f} MB/s at most, with {peak} processes; {fall:.0f} % less with 64")
    result.findings.append(
        f"off the curves that were put in by {100 * max(off):.1f} % at most: the curves are an input here, no result; "
        "that they rise, fall, and fall less for the burst buffer is what the paper's text says"
    )
    return result
