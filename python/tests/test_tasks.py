from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING

import pytest

from conftest import SLOW, Daemon, python
from tidepool import _native
from tidepool.errors import (
    ConnectionFailedError,
    NoSuchDataspaceError,
    NoSuchTaskError,
    TaskCancelledError,
    TaskStateError,
    TidepoolError,
    WaitTimeoutError,
)
from tidepool.stage import Op, Stager, TaskPhase, TaskSpec, TaskState, Verify

if TYPE_CHECKING:
    from pathlib import Path


def slow_copy(daemon: Daemon, stager: Stager) -> int:
    """A task that takes a minute unless it is cancelled."""
    (daemon.dir / "a" / "slow").write_bytes(bytes(60 * SLOW))
    return stager.submit(Op.COPY, "a://slow", "b://slow", bandwidth=SLOW)


def test_a_copy(daemon: Daemon, stager: Stager) -> None:
    (daemon.dir / "a" / "x").write_bytes(b"hello")
    id = stager.submit(Op.COPY, "a://x", "b://y")
    status = stager.wait(id).check()
    assert (status.id, status.op, status.state, status.phase) == (id, Op.COPY, TaskState.FINISHED, TaskPhase.ENDED)
    assert (status.src, status.dst) == ("a://x", "b://y")
    assert (status.bytes_done, status.bytes_total, status.files_done, status.total_known) == (5, 5, 1, True)
    assert status.refusal is None
    assert status.uid == os.getuid()
    assert (daemon.dir / "b" / "y").read_bytes() == b"hello"
    assert stager.status(id) == status


def asked(stager: Stager) -> int:
    """Requests the stager has had, without this one."""
    return stager.daemon_status().counters["requests"] - 1


def test_submitting_and_waiting_at_once(daemon: Daemon, stager: Stager) -> None:
    (daemon.dir / "a" / "x").write_bytes(b"hello")
    before = asked(stager)
    status = stager.submit_and_wait(Op.COPY, "a://x", "b://y", verify=Verify.DISK).check()
    assert asked(stager) == before + 2, "one for the task, one for the first look"
    assert (daemon.dir / "b" / "y").read_bytes() == b"hello"
    assert stager.status(status.id) == status
    failed = stager.submit_task_and_wait(TaskSpec(Op.COPY, "a://missing", "b://z"))
    assert failed.state is TaskState.FAILED
    with pytest.raises(ValueError, match="7 is no Verify"):
        stager.submit(Op.COPY, "a://x", "b://y", verify=7)  # type: ignore[arg-type]
    with pytest.raises(NoSuchDataspaceError) as refused:
        stager.submit_and_wait(Op.COPY, "nowhere://x", "b://y")
    assert refused.value.task is None
    (daemon.dir / "a" / "slow").write_bytes(bytes(60 * SLOW))
    for timeout in (0.0, 0.02, 0.3):
        with pytest.raises(WaitTimeoutError) as late:
            stager.submit_and_wait(Op.COPY, "a://slow", "b://slow", bandwidth=SLOW, timeout=timeout)
        assert late.value.task is not None
        stager.cancel(late.value.task)
        assert stager.wait(late.value.task).state is TaskState.CANCELLED


def test_moving_and_removing(daemon: Daemon, stager: Stager) -> None:
    (daemon.dir / "a" / "x").write_bytes(b"1")
    stager.wait(stager.submit(Op.MOVE, "a://x", "b://x")).check()
    assert not (daemon.dir / "a" / "x").exists()
    stager.wait(stager.submit(Op.REMOVE, "b://x")).check()
    assert not (daemon.dir / "b" / "x").exists()


def test_names_that_are_no_utf8(daemon: Daemon, stager: Stager) -> None:
    name = os.fsdecode(b"\xff\xfe")
    (daemon.dir / "a" / name).write_bytes(b"1")
    stager.wait(stager.submit(Op.COPY, f"a://{name}", f"b://{name}")).check()
    assert os.listdir(daemon.dir / "b") == [name]


def test_many(daemon: Daemon, stager: Stager) -> None:
    for n in range(3):
        (daemon.dir / "a" / str(n)).write_text(str(n))
    tasks = [TaskSpec(Op.COPY, f"a://{n}", f"b://{n}", priority=n) for n in range(3)]
    tasks.insert(1, TaskSpec(Op.COPY, "nowhere://x", "b://x"))
    done = stager.submit_many(iter(tasks))
    assert done.ids[1] == 0
    assert list(done.refused) == [1]
    assert isinstance(done.refused[1].exception(), NoSuchDataspaceError)
    for status in stager.wait_many([id for id in done.ids if id]):
        status.check()
    assert sorted(os.listdir(daemon.dir / "b")) == ["0", "1", "2"]


def test_a_task_that_fails_says_why(stager: Stager) -> None:
    id = stager.submit(Op.COPY, "a://missing", "b://x")
    status = stager.wait(id)
    assert status.state is TaskState.FAILED
    assert status.refusal is not None
    with pytest.raises(TidepoolError) as caught:
        status.check()
    assert (caught.value.code, caught.value.errno, caught.value.detail) == (
        status.refusal.code,
        status.refusal.errno,
        status.refusal.detail,
    )
    assert caught.value.errno == errno.ENOENT


def test_waiting_cancelling_resuming(daemon: Daemon, stager: Stager) -> None:
    id = slow_copy(daemon, stager)
    with pytest.raises(WaitTimeoutError) as late:
        stager.wait(id, timeout=0.4)
    assert isinstance(late.value, TimeoutError)
    assert late.value.code == -5
    assert stager.list(only=TaskState.FINISHED) == []
    with pytest.raises(TaskStateError):
        stager.resume(id)
    with pytest.raises(TaskStateError):
        stager.forget(id)
    stager.cancel(id)
    assert stager.wait(id).state is TaskState.CANCELLED
    with pytest.raises(TaskCancelledError):
        stager.status(id).check()
    stager.resume(id)
    stager.cancel(id)
    stager.wait(id)
    stager.forget(id)
    with pytest.raises(NoSuchTaskError):
        stager.status(id)


def test_waiting_for_any(daemon: Daemon, stager: Stager) -> None:
    (daemon.dir / "a" / "x").write_bytes(b"1")
    slow = slow_copy(daemon, stager)
    quick = stager.submit(Op.COPY, "a://x", "b://x")
    statuses = stager.wait_many([slow, quick], any=True)
    assert [status.id for status in statuses] == [slow, quick]
    assert [status.state.ended for status in statuses] == [False, True]
    stager.cancel(slow)


def test_lists_and_pages(daemon: Daemon, stager: Stager) -> None:
    (daemon.dir / "a" / "x").write_bytes(b"1")
    ids = [stager.submit(Op.COPY, "a://x", f"b://{n}") for n in range(5)]
    stager.wait_many(ids)
    assert [status.id for status in stager.list()] == sorted(ids)
    page, more = stager.list_page(max=3)
    assert more
    rest, more = stager.list_page(after=page[-1].id, max=3)
    assert not more
    assert page + rest == stager.list(only=TaskState.FINISHED)
    assert stager.list(job=77) == []


def test_plans(daemon: Daemon, stager: Stager) -> None:
    (daemon.dir / "a" / "tree").mkdir()
    (daemon.dir / "a" / "tree" / "x").write_bytes(b"12345")
    plan = stager.plan(Op.COPY, "a://tree", "b://tree")
    assert (plan.files, plan.dirs, plan.bytes, plan.problems) == (1, 1, 5, ())
    assert os.listdir(daemon.dir / "b") == []
    assert stager.plan(Op.COPY, bytearray(7), "b://x").bytes == 7


def test_watching(daemon: Daemon, stager: Stager) -> None:
    id = slow_copy(daemon, stager)
    seen = []
    for status in stager.watch(id, interval=0.1):
        seen.append(status)
        if len(seen) == 5:
            stager.cancel(id)
    assert len(seen) > 5
    assert [status.state.ended for status in seen] == [False] * (len(seen) - 1) + [True]
    counts = [status.bytes_done for status in seen]
    assert counts == sorted(counts)


def test_threads_share_a_stager(daemon: Daemon, stager: Stager) -> None:
    (daemon.dir / "a" / "x").write_bytes(b"1")
    failed: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for n in range(50):
                stager.wait(stager.submit(Op.COPY, "a://x", f"b://{thread}.{n}")).check()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(os.listdir(daemon.dir / "b")) == 200


def test_the_interpreter_runs_on_while_a_thread_waits(daemon: Daemon, stager: Stager) -> None:
    """Were its lock held, nobody could cancel the task, and the one question that is asked would go unanswered."""
    from datetime import timedelta

    id = slow_copy(daemon, stager)
    native = _native.Stager(daemon.control, "test")
    answers = []
    started = threading.Event()

    def wait() -> None:
        started.set()
        answers.append(native.wait([id], False, timedelta(seconds=30)))

    thread = threading.Thread(target=wait)
    thread.start()
    started.wait()
    stager.cancel(id)
    thread.join()
    assert [fields["state"] for answer in answers for fields in answer] == [TaskState.CANCELLED]


def test_a_signal_ends_a_wait(daemon: Daemon, stager: Stager) -> None:
    id = slow_copy(daemon, stager)
    program = (
        "import os, signal, sys, threading; from tidepool.stage import Stager; s = Stager(sys.argv[1])\n"
        # Shells have what they start in the background ignore it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "try: s.wait(int(sys.argv[2]))\n"
        "except KeyboardInterrupt: print('before its end:', not s.status(int(sys.argv[2])).state.ended)\n"
    )
    done = python(program, daemon.control, str(id))
    assert (done.stdout, done.stderr, done.returncode) == ("before its end: True\n", "", 0)
    stager.cancel(id)


def test_a_forked_child_has_a_connection_of_its_own(daemon: Daemon, stager: Stager) -> None:
    id = slow_copy(daemon, stager)
    program = (
        "import os, sys; from tidepool.stage import Stager; s = Stager(sys.argv[1]); s.ping(); child = os.fork()\n"
        "for _ in range(200): assert s.status(int(sys.argv[2])).id == int(sys.argv[2])\n"
        "if child == 0: os._exit(0)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = python(program, daemon.control, str(id))
    assert (done.stderr, done.returncode) == ("", 0)
    stager.cancel(id)


def test_a_stager_that_is_restarted_is_found_again(daemon: Daemon, stager: Stager) -> None:
    (daemon.dir / "a" / "x").write_bytes(b"1")
    id = stager.submit(Op.COPY, "a://x", "b://x")
    stager.wait(id)
    before = stager.pid
    daemon.kill()
    daemon.start()
    assert stager.status(id).state is TaskState.FINISHED
    assert stager.pid != before


def test_no_stager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConnectionFailedError) as caught:
        Stager(tmp_path / "none")
    assert caught.value.code == -6
    assert caught.value.errno == 2
    assert "tidepool-staged" in caught.value.detail
    assert not caught.value.may_be_done
    monkeypatch.setenv("TIDEPOOL_STAGER_SOCKET", str(tmp_path / "u"))
    monkeypatch.setenv("TIDEPOOL_STAGER_CONTROL", str(tmp_path / "c"))
    with pytest.raises(ConnectionFailedError, match="/u: "):
        Stager()
    with pytest.raises(ConnectionFailedError, match="/c: "):
        Stager(control=True)


def test_a_closed_stager_says_so(daemon: Daemon) -> None:
    with Stager(daemon.user) as stager:
        assert not stager.is_control
        stager.ping()
    stager.close()
    with pytest.raises(ValueError, match="closed"):
        stager.ping()


@pytest.mark.parametrize("place", ["x", "://x", "host/a://x", ""])
def test_what_is_no_place(stager: Stager, place: str) -> None:
    with pytest.raises(ValueError, match="is no place"):
        stager.submit(Op.COPY, place, "b://x")


def test_what_is_no_operation(stager: Stager) -> None:
    with pytest.raises(ValueError, match="9 is no Op"):
        stager.submit(9, "a://x", "b://x")  # type: ignore[arg-type]
