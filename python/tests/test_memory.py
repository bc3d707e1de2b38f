from __future__ import annotations

import array
import contextlib
import gc
import mmap
import os
import random
import socket
import struct
import threading
import weakref
from typing import TYPE_CHECKING

import pytest

from conftest import SLOW, Daemon, python
from tidepool import _memory, _native
from tidepool.errors import (
    ConnectionFailedError,
    NoSuchDataspaceError,
    ReceiveFailedError,
    TaskStateError,
    TidepoolError,
    WaitTimeoutError,
)
from tidepool.stage import Op, Stager, Submitted, TaskSpec, TaskState

if TYPE_CHECKING:
    from pathlib import Path

SEED = 20_240_817


class Watched(bytearray):
    """A bytearray to which there can be weak references."""


def kept(stager: Stager) -> int:
    return len(_memory.of_stager(stager.socket))


def content(size: int) -> bytes:
    return random.Random(SEED).randbytes(size)


def test_memory_to_file_and_back(daemon: Daemon, stager: Stager) -> None:
    data = content(3_000_001)
    stager.wait(stager.submit(Op.COPY, data, "a://x")).check()
    assert (daemon.dir / "a" / "x").read_bytes() == data
    back = bytearray(len(data))
    stager.wait(stager.submit(Op.COPY, "a://x", back)).check()
    assert back == data
    assert kept(stager) == 0


def test_memory_is_kept_as_long_as_a_task_may_use_it(daemon: Daemon, stager: Stager) -> None:
    data = content(300_001)
    stager.submit_and_wait(Op.COPY, data, "a://x").check()
    assert (daemon.dir / "a" / "x").read_bytes() == data
    assert kept(stager) == 0
    with pytest.raises(NoSuchDataspaceError):
        stager.submit_and_wait(Op.COPY, data, "nowhere://x")
    assert kept(stager) == 0
    # It can be resumed.
    failed = stager.submit_and_wait(Op.COPY, data, "a://x/below")
    assert failed.state is TaskState.FAILED
    assert kept(stager) == 1
    stager.forget(failed.id)
    assert kept(stager) == 0
    with pytest.raises(WaitTimeoutError) as late:
        stager.submit_and_wait(Op.COPY, bytearray(60 * SLOW), "a://slow", bandwidth=SLOW, timeout=0.1)
    assert kept(stager) == 1
    assert late.value.task is not None
    stager.cancel(late.value.task)
    stager.wait(late.value.task)
    stager.forget(late.value.task)
    assert kept(stager) == 0


def test_any_object_with_the_buffer_protocol(daemon: Daemon, stager: Stager) -> None:
    numbers = array.array("d", [1.5, 2.5, 3.5])
    stager.wait(stager.submit(Op.COPY, numbers, "a://x")).check()
    middle = array.array("d", [0.0] * 5)
    stager.wait(stager.submit(Op.COPY, "a://x", memoryview(middle)[1:4])).check()
    assert list(middle) == [0.0, 1.5, 2.5, 3.5, 0.0]
    with mmap.mmap(-1, 24) as mapped:
        stager.wait(stager.submit(Op.COPY, "a://x", mapped)).check()
        assert mapped[:] == numbers.tobytes()


def test_a_buffer_in_use_is_neither_freed_nor_moved(daemon: Daemon, stager: Stager) -> None:
    data = content(4 * SLOW)
    source = Watched(data)
    alive = weakref.ref(source)
    id = stager.submit(Op.COPY, source, "a://x", bandwidth=SLOW)
    assert not stager.status(id).state.ended
    with pytest.raises(BufferError):
        source.extend(b"more")
    del source
    gc.collect()
    rubbish = [bytearray(len(data)) for _ in range(100)]
    assert alive() is not None
    stager.wait(id).check()
    assert (daemon.dir / "a" / "x").read_bytes() == data
    gc.collect()
    assert alive() is None
    assert len(rubbish) == 100


def test_a_buffer_outlives_its_stager(daemon: Daemon) -> None:
    data = content(4 * SLOW)
    with Stager(daemon.control) as first:
        id = first.submit(Op.COPY, Watched(data), "a://x", bandwidth=SLOW)
    del first
    gc.collect()
    with Stager(daemon.control) as second:
        assert kept(second) == 1
        second.wait(id).check()
        assert kept(second) == 0
    assert (daemon.dir / "a" / "x").read_bytes() == data


def test_what_can_be_resumed_is_kept(daemon: Daemon, stager: Stager) -> None:
    data = content(20 * SLOW)
    id = stager.submit(Op.COPY, Watched(data), "a://x", bandwidth=10 * SLOW)
    stager.cancel(id)
    assert stager.wait(id).state is TaskState.CANCELLED
    gc.collect()
    assert kept(stager) == 1
    stager.resume(id)
    stager.wait(id).check()
    assert (daemon.dir / "a" / "x").read_bytes() == data
    assert kept(stager) == 0
    failed = stager.submit(Op.COPY, "a://none", bytearray(10))
    assert stager.wait(failed).state is TaskState.FAILED
    assert kept(stager) == 1
    stager.forget(failed)
    assert kept(stager) == 0


def test_what_nobody_waits_for_is_let_go(daemon: Daemon, stager: Stager) -> None:
    ids = [stager.submit(Op.COPY, b"x", f"a://{n}") for n in range(_memory.SWEEP_MIN)]
    # Nobody here sees that they have ended.
    _native.Stager(daemon.control, "other").wait(ids, False, None)
    assert kept(stager) == _memory.SWEEP_MIN
    stager.submit(Op.COPY, b"x", "a://last")
    assert kept(stager) == 1


def test_refused_memory_is_let_go(stager: Stager) -> None:
    source = Watched(b"12345")
    with pytest.raises(NoSuchDataspaceError):
        stager.submit(Op.COPY, source, "nowhere://x")
    with pytest.raises(ValueError, match="no place"):
        stager.submit(Op.COPY, source, "nonsense")
    with pytest.raises(TidepoolError):
        stager.plan(Op.COPY, source, "nowhere://x")
    done = stager.submit_many([TaskSpec(Op.COPY, source, "nowhere://x"), TaskSpec(Op.COPY, source, "a://x")])
    assert done.ids[0] == 0
    assert kept(stager) == 1
    stager.wait(done.ids[1]).check()
    assert kept(stager) == 0
    source.extend(b"more")


def test_memory_of_a_task_that_nobody_knows_of_is_kept(tmp_path: Path) -> None:
    """A stager that takes each request and dies before it answers (format 11)."""
    path = str(tmp_path / "socket")

    def request(connection: socket.socket) -> int:
        length, _kind, _, id = struct.unpack("<IHHQ", connection.recv(16, socket.MSG_WAITALL))
        connection.recv(length, socket.MSG_WAITALL)
        return int(id)

    def serve() -> None:
        for _ in range(2):
            connection, _ = listener.accept()
            with connection:
                welcome = struct.pack("<HI1sIIB", 1, 1, b"n", os.getpid(), 0, 1)
                connection.sendall(struct.pack("<IHHQ", len(welcome), 2, 0, request(connection)) + welcome)
                request(connection)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        server = threading.Thread(target=serve)
        server.start()
        stager = Stager(path)
        with pytest.raises(ReceiveFailedError) as lost:
            stager.submit(Op.COPY, b"12345", "a://x")
        assert lost.value.may_be_done
        assert kept(stager) == 1
        with pytest.raises(ReceiveFailedError) as lost:
            stager.submit_many([TaskSpec(Op.COPY, b"12345", "a://x"), TaskSpec(Op.REMOVE, "a://x")])
        assert lost.value.may_be_done
        assert lost.value.submitted == Submitted((), {})
        assert kept(stager) == 2
        server.join()
    # Now nobody listens: what was not asked is let go.
    with pytest.raises(ConnectionFailedError) as refused:
        stager.submit(Op.COPY, b"12345", "a://x")
    assert not refused.value.may_be_done
    assert kept(stager) == 2


def test_memory_that_cannot_be_used(stager: Stager) -> None:
    with pytest.raises(BufferError):
        stager.submit(Op.COPY, "a://x", b"read-only")
    with pytest.raises(BufferError):
        stager.submit(Op.COPY, memoryview(b"with gaps")[::2], "a://x")
    with pytest.raises(TypeError):
        stager.submit(Op.COPY, 5, "a://x")  # type: ignore[arg-type]
    assert kept(stager) == 0


def test_the_interpreter_can_end_while_memory_is_kept(daemon: Daemon) -> None:
    program = (
        "import sys; from tidepool.stage import *; s = Stager(sys.argv[1])\n"
        f"print(s.submit(Op.COPY, bytes({100 * SLOW}), 'a://x', bandwidth={SLOW}))\n"
    )
    done = python(program, daemon.control)
    assert (done.stderr, done.returncode) == ("", 0)
    with Stager(daemon.control) as stager:
        # The stager notices only when it reads on, which can be a while at this rate.
        with contextlib.suppress(TaskStateError):
            stager.cancel(int(done.stdout))
        assert stager.wait(int(done.stdout)).state in (TaskState.FAILED, TaskState.CANCELLED)
    assert not (daemon.dir / "a" / "x").exists()
