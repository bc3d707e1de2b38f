"""Signals that stop a run, acted on when that leaves nothing behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal came, which the text names. No error of a suite: nothing goes on after it."""


_came: str | None = None
_held = 0


def listen() -> None:
    """Whoever ignores one (`nohup`, the background of a script) goes on doing so."""
    for number in NUMBERS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _arrived)


def _arrived(number: int, _: object) -> None:
    """The first one is acted on once; later ones would end what takes away pools and mounts."""
    global _came
    if _came is None:
        _came = signal.Signals(number).name
        if not _held:
            raise Stopped(f"stopped by {_came}")


@contextmanager
def held() -> Iterator[None]:
    """A signal that comes in here is acted on at the end. For what is half done otherwise, and ends by itself."""
    global _held
    before = _came
    _held += 1
    try:
        yield
    finally:
        _held -= 1
    if _came != before and not _held:
        raise Stopped(f"stopped by {_came}")


def check() -> None:
    """Raises where a signal came, also one whose exception another one has taken the place of."""
    if _came is not None:
        raise Stopped(f"stopped by {_came}")
