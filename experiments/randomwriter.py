"""Writes requests at random places of a file for some seconds, when it is told to go: randomwriter.py FILE BYTES REGION SECONDS SEED."""

from __future__ import annotations

import json
import os
import random
import sys
import time


def main() -> None:
    name, *numbers = sys.argv[1:]
    size, region, milliseconds, seed = map(int, numbers)
    block, places, draw = os.urandom(size), region // size, random.Random(seed)
    file = os.open(name, os.O_WRONLY | os.O_CREAT, 0o600)
    # The file is as long as it will be.
    os.pwrite(file, block, (places - 1) * size)
    print("ready", flush=True)
    sys.stdin.readline()
    count, began = 0, time.monotonic_ns()
    until = began + milliseconds * 1_000_000
    while (now := time.monotonic_ns()) < until:
        os.pwrite(file, block, draw.randrange(places) * size)
        count += 1
    os.close(file)
    print(json.dumps({"began": began, "ended": now, "requests": count}), flush=True)


if __name__ == "__main__":
    main()
