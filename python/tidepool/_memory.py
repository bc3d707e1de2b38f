"""Buffers that a stager may read or write: kept, for the whole process, until it cannot any more.

Stagers read and write memory by its address. Were the object freed while a task has its address, the task would copy,
or worse overwrite, what lies there then. So a buffer belongs to nobody but this module from the submission on,
also when the `Stager` it was submitted with is gone.

A task that failed or was cancelled can be resumed, by other programs too; so its buffer is kept, until the task is
forgotten. What a task that finished used is let go when anybody in this process sees that it has.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidepool._native import Buffer

SWEEP_MIN = 64
"""Kept tasks of a stager before the first look whether they have ended."""


class Kept:
    """The buffers of one stager's tasks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buffers: dict[int, list[Buffer]] = {}
        self._held: list[list[Buffer]] = []
        self._sweep_at = SWEEP_MIN

    def hold(self, buffers: list[Buffer]) -> None:
        """Before a submission. Whatever ends it, also a signal between the stager's answer and the next line, the
        buffers stay until `keep` or `drop`: without a number for ever.
        """
        with self._lock:
            self._held.append(buffers)

    def keep(self, id: int, buffers: list[Buffer]) -> None:
        """The stager has the task. One of the same number before it was another stager's, which is gone."""
        with self._lock:
            before = self._buffers.pop(id, [])
            self._buffers[id] = buffers
            self._not_held(buffers)
        release(before)

    def drop(self, buffers: list[Buffer]) -> None:
        """The stager does not have the task."""
        with self._lock:
            self._not_held(buffers)
        release(buffers)

    def _not_held(self, buffers: list[Buffer]) -> None:
        self._held = [held for held in self._held if held is not buffers]

    def let_go(self, id: int) -> None:
        """The task has finished or is not there."""
        if self._buffers:
            with self._lock:
                buffers = self._buffers.pop(id, [])
            release(buffers)

    def sweep(self, is_over: Callable[[int], bool]) -> None:
        """Asks about all tasks once their number has doubled: what nobody waited for is let go, too."""
        with self._lock:
            if len(self._buffers) < self._sweep_at:
                return
            ids = list(self._buffers)
        for id in ids:
            if is_over(id):
                self.let_go(id)
        with self._lock:
            self._sweep_at = max(SWEEP_MIN, 2 * len(self._buffers))

    def __len__(self) -> int:
        return len(self._buffers) + len(self._held)


def release(buffers: Iterable[Buffer]) -> None:
    """Their objects may be changed and freed."""
    for buffer in buffers:
        buffer.release()


_all: dict[str, Kept] = {}
_all_lock = threading.Lock()


def of_stager(socket: str) -> Kept:
    """What is kept for the stager that listens there."""
    with _all_lock:
        return _all.setdefault(socket, Kept())
