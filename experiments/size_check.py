"""Runs on a pool for F21: is the size of a shared file right as soon as a writer has synced or closed it?

Usage: size_check.py WRITES. Two processes write 8 KiB each in turn at rising offsets, over many chunks, and sync or close now and
then; this process, which has no file open, asks for the size each time. Prints a line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

PIECE = 8192
SYNC_EVERY = 50
CLOSE_EVERY = 400


def write() -> None:
    """Obeys lines `OFFSET ACT` with ACT one of write, sync, close."""
    fd = None
    for line in sys.stdin:
        offset, act = line.split()
        if fd is None:
            fd = os.open("shared", os.O_WRONLY | os.O_CREAT)
        if os.pwrite(fd, b"x" * PIECE, int(offset)) != PIECE:
            sys.exit("short write")
        if act == "sync":
            os.fsync(fd)
        if act == "close":
            os.close(fd)
            fd = None
        print("done", flush=True)


def tell(writer: subprocess.Popen, offset: int, act: str) -> None:
    print(offset, act, file=writer.stdin, flush=True)
    if writer.stdout.readline() != "done\n":
        sys.exit("a writer has failed; see above")


def main(writes: int) -> None:
    os.chdir(os.environ["TIDEPOOL_DIR"])
    command = [sys.executable, __file__, "write"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    writers = [subprocess.Popen(command, **pipes) for _ in range(2)]
    looks, wrong = 0, []
    for number in range(writes):
        last = number + 1
        act = "close" if last % CLOSE_EVERY == 0 else "sync" if last % SYNC_EVERY == 0 else "write"
        tell(writers[number % 2], number * PIECE, act)
        if act != "write":
            looks += 1
            size = os.stat("shared").st_size
            if size != last * PIECE:
                wrong.append(f"{size} bytes instead of {last * PIECE} after {act}")
    for writer in writers:
        writer.stdin.close()
        if writer.wait() != 0:
            sys.exit("a writer ended badly")
    looks += 1
    if os.stat("shared").st_size != writes * PIECE:
        wrong.append(f"{os.stat('shared').st_size} bytes instead of {writes * PIECE} at the end")
    print(json.dumps({"writes": writes, "looks": looks, "wrong": wrong}))


if __name__ == "__main__":
    write() if sys.argv[1:] == ["write"] else main(int(sys.argv[1]))
