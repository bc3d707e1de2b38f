#!/usr/bin/env python3
"""Writes and reads an HDF5 file with file locking on; deterministic, so that two runs can
be compared byte by byte."""

from __future__ import annotations

import os

os.environ.setdefault("HDF5_USE_FILE_LOCKING", "TRUE")

import h5py  # noqa: E402  (reads the variable when it is loaded)
import numpy as np  # noqa: E402

STEPS, EDGE = 20, 256


def main() -> None:
    field = np.zeros((EDGE, EDGE))
    field[0, :] = 1.0
    with h5py.File("field.h5", "w", track_order=True) as out:
        data = out.create_dataset("field", (STEPS, EDGE, EDGE), chunks=(1, EDGE, EDGE))
        for step in range(STEPS):
            inner = field[:-2, 1:-1] + field[2:, 1:-1] + field[1:-1, :-2] + field[1:-1, 2:]
            field[1:-1, 1:-1] = inner / 4
            data[step] = field
            out.flush()
    with h5py.File("field.h5", "r") as check:
        assert check["field"].shape == (STEPS, EDGE, EDGE)
        assert np.array_equal(check["field"][-1], field)
    np.savetxt("sums.txt", [field.sum(), field.max()])


if __name__ == "__main__":
    main()
