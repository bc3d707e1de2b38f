"""Writes a file and syncs it, or reads it, when it is told to go: mover.py write|read FILE BYTES."""

from __future__ import annotations

import json
import os
import sys
import time

TRANSFER = 4 << 20


def write(name: str, byte_count: int) -> None:
    block = os.urandom(TRANSFER)
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    left = byte_count
    while left:
        left -= os.write(file, block[:left])
    os.fsync(file)
    os.close(file)


def read(name: str, byte_count: int) -> None:
    file = os.open(name, os.O_RDONLY)
    left = byte_count
    while got := os.read(file, TRANSFER):
        left -= len(got)
    os.close(file)
    if left:
        raise SystemExit(f"{name} is {left} bytes shorter than was written")


def main() -> None:
    what, name, byte_count = sys.argv[1:]
    move = {"write": write, "read": read}[what]
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic_ns()
    move(name, int(byte_count))
    print(json.dumps({"began": began, "ended": time.monotonic_ns()}), flush=True)


if __name__ == "__main__":
    main()
