#!/usr/bin/env python3
"""Where a slowdown lies among those that predictsim published for each variant of its learnt predictors.

  bench/learnt_variants.py KTH=FILE:48.0 CTC=FILE:16.4 ...

FILE is a log's sim_analysis/metrics_complete of predictsim, the number behind it ours. For each log: how many variants there are,
the best of all, how many do better than ours, and what the variant that is best on the other logs has: the one with the least
product of slowdowns relative to each other log's best.
"""

import math
import sys
from pathlib import Path


def slowdowns(path: str) -> dict[str, float]:
    """Mean bounded slowdowns by variant, without what is not learnt and what failed."""
    head, *rows = [line.split() for line in Path(path).read_text().splitlines()]
    found = {}
    for row in rows:
        # Rows begin with their number, which the head has no word for.
        named = dict(zip(head, row[1:], strict=False))
        if "sgd" in named.get("name", "") and named["avgbsld"] != "NA":
            found[named["name"].rsplit("/")[-1].removesuffix(".swf.gz")] = float(named["avgbsld"])
    return found


def main(words: list[str]) -> None:
    published, ours = {}, {}
    for word in words:
        log, _, rest = word.partition("=")
        path, _, number = rest.rpartition(":")
        published[log], ours[log] = slowdowns(path), float(number)
    common = set.intersection(*(set(variants) for variants in published.values()))

    def loss(variant: str, log: str) -> float:
        return sum(math.log(published[other][variant] / min(published[other].values())) for other in published if other != log)

    for log, variants in published.items():
        chosen = min(sorted(common), key=lambda variant, log=log: loss(variant, log))
        better = sum(value < ours[log] for value in variants.values())
        print(f"{log}: {len(variants)} variants, best {min(variants.values()):.2f}; ours {ours[log]:g}, {better} are better")
        print(f"  best on the others, {variants[chosen]:.2f} here: {chosen}")


if __name__ == "__main__":
    if len(sys.argv) < 3 or not all("=" in word and ":" in word for word in sys.argv[1:]):
        sys.exit(__doc__)
    main(sys.argv[1:])
