"""HDF5's own file locks between processes: two writers and two readers use one file in turn.

HDF5 does not wait for a lock: who cannot have the file gets an error and tries again. A writer must
shut out everybody, readers only writers.
"""

import errno
import os
import subprocess
import sys
import time

import h5py
import numpy as np

FILE = "turns.h5"
TURNS = 20
SECONDS_MAX = 60


def locked(error):
    """True for HDF5's way of saying that somebody else has the file."""
    return error.errno == errno.EAGAIN or "unable to lock file" in str(error)


def overtaken(error):
    """HDF5 asks for the size before it locks the file. When a writer makes the file longer between the two,
    it finds the file too short; on tmpfs as on a pool. Opening it again helps."""
    return "truncated file" in str(error)


def opened(mode):
    """The file, as soon as its lock is free."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            return h5py.File(FILE, mode)
        except OSError as error:
            if not (locked(error) or overtaken(error)) or time.monotonic() > deadline:
                raise
        time.sleep(0.002)


def write(name):
    """Adds a row that says how many there were before."""
    for _ in range(TURNS):
        with opened("a") as file:
            rows = file["rows"]
            count = rows.shape[0]
            rows.resize(count + 1, axis=0)
            rows[count] = np.full(1000, count)
            file.attrs["last"] = name
        time.sleep(0.001)


def read():
    seen = 0
    while seen < 2 * TURNS:
        with opened("r") as file:
            rows = file["rows"][...]
        assert rows.shape[0] >= seen, "rows have gone"
        assert (rows == np.arange(rows.shape[0])[:, None]).all(), "a row is torn or lost"
        seen = rows.shape[0]
        time.sleep(0.002)


def refused(mode):
    """Exit code 0 when the file is locked against us."""
    try:
        h5py.File(FILE, mode).close()
    except OSError as error:
        assert locked(error), error
        return
    sys.exit(f"opened with {mode} although another process has the file")


def start(*arguments):
    return subprocess.Popen([sys.executable, __file__, *arguments])


def together(*others):
    """Waits for all; when one fails, readers would wait for ever for the rows that are missing."""
    running = list(others)
    while running:
        for other in [other for other in running if other.poll() is not None]:
            running.remove(other)
            if other.returncode != 0:
                for left in running:
                    left.kill()
                sys.exit(f"{other.args[2:]} ended with {other.returncode}")
        time.sleep(0.05)


def main():
    assert os.environ["HDF5_USE_FILE_LOCKING"] == "TRUE"
    with h5py.File(FILE, "w") as file:
        file.create_dataset("rows", (0, 1000), maxshape=(None, 1000), dtype="i8")
        assert start("refused", "r").wait() == 0 and start("refused", "a").wait() == 0
    with h5py.File(FILE, "r"):
        assert start("refused", "a").wait() == 0
        with h5py.File(FILE, "r"):
            pass

    together(start("write", "a"), start("write", "b"), start("read"), start("read"))
    with h5py.File(FILE, "r") as file:
        assert file["rows"].shape == (2 * TURNS, 1000)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", name]:
            write(name)
        case ["read"]:
            read()
        case ["refused", mode]:
            refused(mode)
        case []:
            main()
        case _:
            sys.exit(__doc__)
