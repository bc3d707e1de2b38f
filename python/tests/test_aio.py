from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from conftest import SLOW, Daemon
from tidepool.aio import WAIT_THREADS, AsyncStager
from tidepool.errors import ConnectionFailedError, NoSuchTaskError, TaskStateError, WaitTimeoutError
from tidepool.stage import Op, Stager, TaskSpec, TaskState

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("tidepool-")]


async def slow_copy(daemon: Daemon, stager: AsyncStager, name: str = "slow") -> int:
    (daemon.dir / "a" / "slow").write_bytes(bytes(60 * SLOW))
    return await stager.submit(Op.COPY, "a://slow", f"b://{name}", bandwidth=SLOW)


def test_both_apis_have_the_same_methods() -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(method).parameters)
            for name, method in vars(kind).items()
            if inspect.isfunction(method) and not name.startswith("_")
        }

    assert methods(AsyncStager) == methods(Stager)


def test_submitting_and_waiting_at_once(daemon: Daemon) -> None:
    async def work() -> None:
        (daemon.dir / "a" / "x").write_bytes(b"hello")
        (daemon.dir / "a" / "slow").write_bytes(bytes(60 * SLOW))
        async with AsyncStager(daemon.control) as stager:
            status = (await stager.submit_and_wait(Op.COPY, "a://x", "b://x")).check()
            assert status.state is TaskState.FINISHED
            assert (daemon.dir / "b" / "x").read_bytes() == b"hello"
            # More of those that take long than there are threads.
            slow = [TaskSpec(Op.COPY, "a://slow", f"b://{n}", bandwidth=SLOW) for n in range(2 * WAIT_THREADS)]
            long = [asyncio.ensure_future(stager.submit_task_and_wait(task)) for task in slow]
            with pytest.raises(WaitTimeoutError) as late:
                await stager.submit_and_wait(Op.COPY, "a://slow", "b://late", bandwidth=SLOW, timeout=0.1)
            assert late.value.task is not None
            while len(await stager.list(only=TaskState.CANCELLED)) < len(long) + 1:
                for task in await stager.list():
                    # Those that were told before may end meanwhile.
                    with contextlib.suppress(TaskStateError):
                        await stager.cancel(task.id)
            assert {status.state for status in await asyncio.gather(*long)} == {TaskState.CANCELLED}

    run(work())


def test_a_copy(daemon: Daemon) -> None:
    async def work() -> None:
        (daemon.dir / "a" / "x").write_bytes(b"hello")
        async with AsyncStager(daemon.control) as stager:
            id = await stager.submit(Op.COPY, "a://x", "b://x")
            (await stager.wait(id)).check()
            back = bytearray(5)
            (await stager.wait(await stager.submit(Op.COPY, "b://x", back))).check()
            assert back == b"hello"
            done = await stager.submit_many([TaskSpec(Op.REMOVE, "a://x"), TaskSpec(Op.REMOVE, "b://x")])
            statuses = await stager.wait_many(done.ids)
            assert [status.state for status in statuses] == [TaskState.FINISHED] * 2
            assert len(await stager.list()) == 4
            assert [info.dataspace.name for info in await stager.dataspaces()] == ["a://", "b://"]
            with pytest.raises(NoSuchTaskError):
                await stager.status(4711)

    run(work())
    assert ours() == []


def test_cancelled_waits_leave_no_thread_and_no_task_behind(daemon: Daemon) -> None:
    async def work() -> None:
        async with AsyncStager(daemon.control) as stager:
            id = await slow_copy(daemon, stager)
            for _ in range(3):
                waits = [asyncio.ensure_future(stager.wait(id)) for _ in range(3 * WAIT_THREADS)]
                await asyncio.sleep(0.1)
                for wait in waits:
                    wait.cancel()
                ended = await asyncio.gather(*waits, return_exceptions=True)
                assert all(isinstance(end, asyncio.CancelledError) for end in ended)
            assert not (await stager.status(id)).state.ended
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(stager.wait(id), 0.1)
            with pytest.raises(WaitTimeoutError):
                await stager.wait(id, timeout=0.6)
            await stager.cancel(id)
            assert (await stager.wait(id)).state is TaskState.CANCELLED

    run(work())
    assert ours() == []


def test_more_waits_than_threads_all_get_their_turn(daemon: Daemon) -> None:
    """The last one ends the task that all the others wait for."""

    async def work() -> None:
        async with AsyncStager(daemon.control) as stager:
            (daemon.dir / "a" / "x").write_bytes(b"1")
            slow = await slow_copy(daemon, stager)
            waits = [asyncio.ensure_future(stager.wait(slow)) for _ in range(3 * WAIT_THREADS)]
            (await stager.wait(await stager.submit(Op.COPY, "a://x", "b://x"))).check()
            await stager.cancel(slow)
            statuses = await asyncio.gather(*waits)
            assert {status.state for status in statuses} == {TaskState.CANCELLED}

    run(work())


def test_watching(daemon: Daemon) -> None:
    async def work() -> None:
        async with AsyncStager(daemon.control) as stager:
            id = await slow_copy(daemon, stager)
            seen = []
            async for status in stager.watch(id, interval=0.1):
                seen.append(status)
                if len(seen) == 5:
                    await stager.cancel(id)
            assert [status.state.ended for status in seen] == [False] * (len(seen) - 1) + [True]
            assert len(seen) > 5

    run(work())


def test_the_loop_runs_on_while_a_coroutine_waits(daemon: Daemon) -> None:
    async def work() -> None:
        async with AsyncStager(daemon.control) as stager:
            id = await slow_copy(daemon, stager)
            wait = asyncio.ensure_future(stager.wait(id))
            turns = 0
            while turns < 100:
                await asyncio.sleep(0.001)
                turns += 1
                assert not wait.done()
            await stager.cancel(id)
            await wait

    run(work())


def test_no_stager(tmp_path: Path) -> None:
    async def work() -> None:
        with pytest.raises(ConnectionFailedError):
            async with AsyncStager(tmp_path / "none"):
                pass

    run(work())
    assert ours() == []
