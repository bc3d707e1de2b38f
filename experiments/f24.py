"""F24: sequential access to a file per process, by transfer size, as a share of what the store gives."""

from __future__ import annotations

import filedata
import figures
from harness import Result, Setting

TITLE = "sequential access, a file per process"


def measure(setting: Setting) -> Result:
    result = Result("bytes of a transfer")
    for store in setting.stores():
        filedata.add(result, filedata.bench(setting, store, "sequential"), store, "sequential")
    result.findings.append(result.widest())
    return result


def draw(report: dict, rows: list[dict]):
    figure, axes = filedata.draw(report, rows, "sequential")
    figures.legend_below(figure, axes)
    return figure
