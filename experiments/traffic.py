"""The other job of F23: one process sends to another over the loopback, at a limited rate.

Usage: traffic.py MEGABYTES_PER_SECOND, 0 for no limit. Says `flowing`, stops when standard input ends, and then
prints how many bytes have arrived.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

BLOCK = bytes(64 << 10)
TICK_SECONDS = 0.01


def send(stream: socket.socket, rate: float) -> None:
    """Until the receiver goes away."""
    began, sent = time.monotonic(), 0
    try:
        while True:
            due = (time.monotonic() - began) * rate
            if rate and sent > due:
                time.sleep(TICK_SECONDS)
                continue
            sent += stream.send(BLOCK)
    except (BrokenPipeError, ConnectionResetError):
        pass


def main(megabytes: int) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    if os.fork() == 0:
        send(socket.create_connection(listener.getsockname()), megabytes * 1e6)
        os._exit(0)
    stream, _ = listener.accept()
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    buffer, received = bytearray(1 << 20), 0
    print("flowing", flush=True)
    while not ended.is_set():
        received += stream.recv_into(buffer)
    stream.close()
    os.wait()
    print(received)


if __name__ == "__main__":
    main(int(sys.argv[1]))
