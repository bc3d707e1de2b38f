"""The stager's API for asyncio: the methods of `tidepool.stage.Stager` as coroutines.

    async with AsyncStager() as stager:
        id = await stager.submit(Op.COPY, "lustre://in", "nvme0://in")
        async for status in stager.watch(id):
            print(status.bytes_done, status.bytes_total)

The event loop is never held up: requests are made by `REQUEST_THREADS` threads over one connection. Waits have
`WAIT_THREADS` threads of their own, so that they keep no request back. A wait asks in slices of `WAIT_SLICE_S` seconds
and queues again after each, so that any number of waits share these threads in turn, and a cancelled wait leaves
nothing behind: its thread is free for others at the end of its slice at the latest. Any other coroutine that is
cancelled stops waiting for its answer, but what was asked is done all the same.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Callable, TypeVar

from tidepool.errors import TidepoolError, WaitTimeoutError
from tidepool.stage import FIRST_WAIT_S, WAIT_SLICE_S, Stager, TaskSpec

if TYPE_CHECKING:
    import builtins
    import os
    from collections.abc import AsyncIterator, Iterable, Sequence
    from types import TracebackType

    from tidepool._types import (
        Command,
        DataspaceInfo,
        DataspaceSpec,
        End,
        JobReport,
        JobSpec,
        Leftovers,
        OnBehalf,
        Op,
        Persisted,
        PersistOp,
        Plan,
        Policy,
        ProcessSpec,
        StagerStatus,
        Submitted,
        TaskState,
        TaskStatus,
        Verify,
    )

__all__ = ["AsyncStager"]

T = TypeVar("T")

REQUEST_THREADS = 4
WAIT_THREADS = 16


class AsyncStager:
    """A stager of this node, for coroutines of any event loop. For units and errors see `Stager`.

    The connection is made by the first request, or by `async with`.
    """

    def __init__(self, socket: str | os.PathLike[str] | None = None, control: bool = False) -> None:
        self._make: Callable[[], Stager] = partial(Stager, socket, control)
        self._stager: Stager | None = None
        # Threads are made when they are needed.
        self._requests = ThreadPoolExecutor(REQUEST_THREADS, "tidepool-request")
        self._waits = ThreadPoolExecutor(WAIT_THREADS, "tidepool-wait")

    async def __aenter__(self) -> AsyncStager:
        try:
            await self._request(lambda stager: None)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection and the threads, after at most `WAIT_SLICE_S` and the requests under way."""
        loop = asyncio.get_running_loop()
        # Not by these threads, which cannot wait for their own end.
        await loop.run_in_executor(None, self._close)

    def _close(self) -> None:
        for threads in (self._requests, self._waits):
            threads.shutdown(wait=True, cancel_futures=True)
        if self._stager is not None:
            self._stager.close()

    def _connected(self) -> Stager:
        # Two threads may both connect at first: one connection is kept, the other closes itself.
        if self._stager is None:
            self._stager = self._make()
        return self._stager

    async def _run(self, threads: ThreadPoolExecutor, question: Callable[[Stager], T]) -> T:
        def ask() -> T:
            return question(self._connected())

        return await asyncio.get_running_loop().run_in_executor(threads, ask)

    async def _request(self, question: Callable[[Stager], T]) -> T:
        return await self._run(self._requests, question)

    async def ping(self) -> None:
        """See `Stager.ping`."""
        await self._request(lambda stager: stager.ping())

    async def submit(
        self,
        op: Op,
        src: End,
        dst: End | None = None,
        *,
        priority: int = 0,
        verify: Verify | bool = True,
        bandwidth: int = 0,
        size_hint: int = 0,
        on_behalf: OnBehalf | None = None,
    ) -> int:
        """See `Stager.submit`. When it is cancelled, the stager may have the task all the same."""
        return await self._request(
            lambda stager: stager.submit(
                op,
                src,
                dst,
                priority=priority,
                verify=verify,
                bandwidth=bandwidth,
                size_hint=size_hint,
                on_behalf=on_behalf,
            )
        )

    async def submit_task(self, task: TaskSpec) -> int:
        """See `Stager.submit_task`."""
        return await self._request(lambda stager: stager.submit_task(task))

    async def submit_and_wait(
        self,
        op: Op,
        src: End,
        dst: End | None = None,
        *,
        priority: int = 0,
        verify: Verify | bool = True,
        bandwidth: int = 0,
        size_hint: int = 0,
        on_behalf: OnBehalf | None = None,
        timeout: float | None = None,
    ) -> TaskStatus:
        """See `Stager.submit_and_wait`. When it is cancelled, the stager may have the task and goes on with it."""
        task = TaskSpec(op, src, dst, priority, verify, bandwidth, size_hint, on_behalf)
        return await self.submit_task_and_wait(task, timeout=timeout)

    async def submit_task_and_wait(self, task: TaskSpec, timeout: float | None = None) -> TaskStatus:
        """See `Stager.submit_task_and_wait`, and `submit_and_wait` here."""
        until = None if timeout is None else time.monotonic() + timeout
        first = FIRST_WAIT_S if timeout is None else timeout
        status = await self._run(self._waits, lambda stager: stager._submit_and_look(task, first))
        if status.state.ended:
            return status
        try:
            return await self.wait(status.id, None if until is None else max(until - time.monotonic(), 0.0))
        except TidepoolError as error:
            error.task = status.id
            raise

    async def submit_many(self, tasks: Iterable[TaskSpec]) -> Submitted:
        """See `Stager.submit_many`."""
        return await self._request(lambda stager: stager.submit_many(tasks))

    async def status(self, id: int) -> TaskStatus:
        """See `Stager.status`."""
        return await self._request(lambda stager: stager.status(id))

    async def wait(self, id: int, timeout: float | None = None) -> TaskStatus:
        """See `Stager.wait`. Cancelling it does not cancel the task."""
        return (await self.wait_many([id], timeout=timeout))[0]

    async def wait_many(
        self, ids: Sequence[int], *, any: bool = False, timeout: float | None = None
    ) -> builtins.list[TaskStatus]:
        """See `Stager.wait_many`. Cancelling it does not cancel the tasks."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = WAIT_SLICE_S if until is None else max(until - time.monotonic(), 0.0)
            once = partial(Stager.wait_many, ids=ids, any=any, timeout=min(left, WAIT_SLICE_S))
            try:
                return await self._run(self._waits, once)
            except WaitTimeoutError:
                if until is not None and until <= time.monotonic():
                    raise

    async def watch(self, id: int, interval: float = 0.5) -> AsyncIterator[TaskStatus]:
        """See `Stager.watch`: the status now, about every `interval` seconds, and when the task has ended."""
        while True:
            status = await self.status(id)
            yield status
            if status.state.ended:
                return
            try:
                yield await self.wait(id, timeout=interval)
            except WaitTimeoutError:
                continue
            return

    async def cancel(self, id: int) -> None:
        """See `Stager.cancel`."""
        await self._request(lambda stager: stager.cancel(id))

    async def resume(self, id: int) -> None:
        """See `Stager.resume`."""
        await self._request(lambda stager: stager.resume(id))

    async def forget(self, id: int) -> None:
        """See `Stager.forget`."""
        await self._request(lambda stager: stager.forget(id))

    async def list(self, job: int | None = None, only: TaskState | None = None) -> builtins.list[TaskStatus]:
        """See `Stager.list`."""
        return await self._request(lambda stager: stager.list(job, only))

    async def list_page(
        self, job: int | None = None, only: TaskState | None = None, *, after: int = 0, max: int
    ) -> tuple[builtins.list[TaskStatus], bool]:
        """See `Stager.list_page`."""
        return await self._request(lambda stager: stager.list_page(job, only, after=after, max=max))

    async def plan(self, op: Op, src: End, dst: End | None = None, *, on_behalf: OnBehalf | None = None) -> Plan:
        """See `Stager.plan`."""
        return await self._request(lambda stager: stager.plan(op, src, dst, on_behalf=on_behalf))

    async def daemon_status(self) -> StagerStatus:
        """See `Stager.daemon_status`."""
        return await self._request(lambda stager: stager.daemon_status())

    async def dataspaces(self) -> builtins.list[DataspaceInfo]:
        """See `Stager.dataspaces`."""
        return await self._request(lambda stager: stager.dataspaces())

    async def persist(self, op: PersistOp, dataspace: str, path: str, *, user: int = 0, expires: int = 0) -> int | None:
        """See `Stager.persist`."""
        return await self._request(lambda stager: stager.persist(op, dataspace, path, user=user, expires=expires))

    async def persisted(self) -> builtins.list[Persisted]:
        """See `Stager.persisted`."""
        return await self._request(lambda stager: stager.persisted())

    async def job_report(self, job: int) -> JobReport:
        """See `Stager.job_report`."""
        return await self._request(lambda stager: stager.job_report(job))

    async def register_dataspace(self, dataspace: DataspaceSpec) -> None:
        """See `Stager.register_dataspace`."""
        await self._request(lambda stager: stager.register_dataspace(dataspace))

    async def update_dataspace(self, dataspace: DataspaceSpec) -> None:
        """See `Stager.update_dataspace`."""
        await self._request(lambda stager: stager.update_dataspace(dataspace))

    async def unregister_dataspace(self, name: str) -> None:
        """See `Stager.unregister_dataspace`."""
        await self._request(lambda stager: stager.unregister_dataspace(name))

    async def register_job(self, job: JobSpec) -> None:
        """See `Stager.register_job`."""
        await self._request(lambda stager: stager.register_job(job))

    async def update_job(self, job: JobSpec) -> None:
        """See `Stager.update_job`."""
        await self._request(lambda stager: stager.update_job(job))

    async def unregister_job(self, job: int) -> Leftovers:
        """See `Stager.unregister_job`."""
        return await self._request(lambda stager: stager.unregister_job(job))

    async def add_process(self, job: int, process: ProcessSpec) -> None:
        """See `Stager.add_process`."""
        await self._request(lambda stager: stager.add_process(job, process))

    async def remove_process(self, job: int, process: ProcessSpec) -> None:
        """See `Stager.remove_process`."""
        await self._request(lambda stager: stager.remove_process(job, process))

    async def command(self, command: Command) -> None:
        """See `Stager.command`."""
        await self._request(lambda stager: stager.command(command))

    async def jobs(self) -> builtins.list[JobSpec]:
        """See `Stager.jobs`."""
        return await self._request(lambda stager: stager.jobs())

    async def leftovers(self, dataspace: str, max: int = 1000) -> Leftovers:
        """See `Stager.leftovers`."""
        return await self._request(lambda stager: stager.leftovers(dataspace, max))

    async def set_policy(self, policy: Policy) -> None:
        """See `Stager.set_policy`."""
        await self._request(lambda stager: stager.set_policy(policy))
