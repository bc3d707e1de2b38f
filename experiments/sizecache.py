"""What F21 and F26 share: pools with and without the client's cache of file sizes."""

from __future__ import annotations

import re

from harness import Failed, Result, Sample, Setting, pick

WITHOUT, WITH = "without size cache", "with size cache"
SWITCH = "--size-cache"
# By the name that the command gives to the value.
USUAL_VALUES = {"N": "64", "MS": "100", "WRITES": "64"}


def variants(setting: Setting, result: Result) -> dict[str, list[str]]:
    """Series and the switches that make them; only the first where the build has no cache."""
    found = re.search(rf"{SWITCH}(?:[ =\[]+<?(\w+)>?)?", setting.help("run"))
    if not found:
        result.findings.append(f"this build of tidepool has no {SWITCH}: only what it does without one is measured")
        return {WITHOUT: []}
    value = setting.args.size_cache or USUAL_VALUES.get(found[1] or "")
    if found[1] and not value:
        raise Failed(f"tidepool {SWITCH} wants a value, {found[1]}: give it by the experiment's --size-cache")
    result.details["size_cache"] = value or "on"
    return {WITHOUT: [], WITH: [SWITCH, *([value] if found[1] else [])]}


def rates(samples: list[Sample], case: str, phase: str = "write") -> list[float]:
    return [s.rate() for s in pick(samples, case=case, side="pool", phase=phase)]
