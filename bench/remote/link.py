#!/usr/bin/python3
"""A link of a given rate and delay between two network name spaces.

    link.py NETNS_A ADDRESS_A NETNS_B ADDRESS_B MBIT_S ONE_WAY_MS

Does with two TUN devices what `tc netem delay ... rate ...` does, for kernels without netem. Packets pass unchanged, in order;
each leaves when the line has sent those before it and arrives the delay later. Whole segments of up to 64 KiB pass at
once, as between virtual machines. Prints "ready" and runs until it is ended.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque

TUNSETIFF = 0x400454CA
TUNSETOFFLOAD = 0x400454D0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x1, 0x1000, 0x4000
# Checksums and segmentation are left to whoever receives: checksum, TSO4, TSO6.
OFFLOADS = 0x1 | 0x2 | 0x4
VNET_HEADER = 10
PACKET_MAX = (64 << 10) + VNET_HEADER + 64
# Bytes that may wait for the line; what comes then is dropped, as a router would.
QUEUE_MAX = 32 << 20


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def open_tun(namespace: str, address: str) -> int:
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    name = f"tp-{namespace[-8:]}"
    flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(file, TUNSETOFFLOAD, OFFLOADS)
    ip("link", "set", name, "netns", namespace)
    ip("-n", namespace, "addr", "add", f"{address}/24", "dev", name)
    ip("-n", namespace, "link", "set", name, "up", "txqueuelen", "10000")
    return file


def carry(source: int, target: int, bytes_per_second: float, delay: float) -> None:
    """Passes packets in one direction, for ever."""
    line: deque[tuple[float, bytes]] = deque()
    queued, free = 0, 0.0
    while True:
        now = time.monotonic()
        while line and line[0][0] <= now:
            packet = line.popleft()[1]
            queued -= len(packet)
            os.write(target, packet)
        wait = max(0.0, line[0][0] - now) if line else None
        if not select.select([source], [], [], wait)[0]:
            continue
        while True:
            try:
                packet = os.read(source, PACKET_MAX)
            except BlockingIOError:
                break
            if queued + len(packet) > QUEUE_MAX:
                continue
            queued += len(packet)
            free = max(free, time.monotonic()) + (len(packet) - VNET_HEADER) / bytes_per_second
            line.append((free + delay, packet))
            if line[0][0] <= time.monotonic():
                break


def main() -> None:
    a, address_a, b, address_b, mbit, delay_ms = sys.argv[1:]
    one, two = open_tun(a, address_a), open_tun(b, address_b)
    rate, delay = float(mbit) * 125_000, float(delay_ms) / 1000
    print("ready", flush=True)
    if os.fork() == 0:
        carry(two, one, rate, delay)
    else:
        carry(one, two, rate, delay)


if __name__ == "__main__":
    main()
