"""K16: the paper's Figure 8: two instances of WRF's pattern on 1, 2 and 4 nodes, by strategy."""

from __future__ import annotations

from harness import Result, Setting
from tiers import STRATEGIES, App, compare, draw, sweep

__all__ = ["TITLE", "draw", "measure"]
TITLE = "WRF's pattern: two instances on shaped tiers, by strategy (S3 Figure 8)"
NODES = (1, 2, 4)
PROCESSES_OF_NODE = 8
PAPER = "the paper: ia is the better the more nodes there are, without numbers in the text (S3 IV-C)"


def wrf(nodes: int, checkpoint: int, steps: int) -> App:
    """Input is read, a checkpoint written at every second step, a result at the end."""
    sizes = ["--input-bytes", str(checkpoint), "--checkpoint-bytes", str(checkpoint), "--output-bytes", str(2 * checkpoint)]
    words = ["wrf", *sizes, "--steps", str(steps), "--every", "2", "--compute-seconds", "1"]
    return App(words, nodes * PROCESSES_OF_NODE)


def measure(setting: Setting) -> Result:
    result = Result("nodes of each instance")
    setting.fewer_repeats(1)
    nodes, checkpoint, steps = ((1,), 500_000, 2) if setting.quick else (NODES, 2_000_000, 8)
    result.details.update(processes_of_node=PROCESSES_OF_NODE, checkpoint_bytes=checkpoint, steps=steps, paper=PAPER)
    sweep(setting, result, {count: [wrf(count, checkpoint, steps)] * 2 for count in nodes}, STRATEGIES)
    # The paper gives no factors; to be no slower is what is looked at.
    compare(result, (1.0, 1.0), PAPER)
    result.findings.append(result.widest())
    return result
