"""The stager's Python API: submit, watch and administer staging tasks.

    >>> from tidepool.stage import Op, Stager                   # doctest: +SKIP
    >>> with Stager() as stager:                                # doctest: +SKIP
    ...     id = stager.submit(Op.COPY, "lustre://in", "nvme0://in")
    ...     stager.wait(id).check()

Sizes are bytes, rates bytes per second, timeouts seconds. Everything that asks a stager may raise
`ConnectionFailedError`, `SendFailedError` and `ReceiveFailedError`; other errors are named where they occur and are
in `tidepool.errors`. The asynchronous API is `tidepool.aio`.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Callable, TypeVar, cast

from tidepool import _memory, _native, _types
from tidepool._types import (
    Command,
    DataspaceInfo,
    DataspaceKind,
    DataspaceSpec,
    JobLimit,
    JobReport,
    JobSpec,
    Leftover,
    Leftovers,
    OnBehalf,
    Op,
    PairReport,
    Persisted,
    PersistOp,
    Plan,
    Policy,
    ProcessSpec,
    Refusal,
    StagerStatus,
    Submitted,
    TaskPhase,
    TaskSpec,
    TaskState,
    TaskStatus,
    Verify,
)
from tidepool.errors import NoSuchTaskError, TidepoolError, WaitTimeoutError

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType

    from tidepool._types import End, Fields

__all__ = [
    "Command",
    "DataspaceInfo",
    "DataspaceKind",
    "DataspaceSpec",
    "JobLimit",
    "JobReport",
    "JobSpec",
    "Leftover",
    "Leftovers",
    "OnBehalf",
    "Op",
    "PairReport",
    "PersistOp",
    "Persisted",
    "Plan",
    "Policy",
    "ProcessSpec",
    "Refusal",
    "Stager",
    "StagerStatus",
    "Submitted",
    "TaskPhase",
    "TaskSpec",
    "TaskState",
    "TaskStatus",
    "Verify",
    "control_socket",
    "user_socket",
]

T = TypeVar("T")

FIRST_WAIT_S = 0.05
"""How long a submission that waits does so before it waits by the task's number: such a wait outlives the stager."""
WAIT_SLICE_S = 0.25
"""Longest single question of a wait: how long a signal (Ctrl-C) or a cancelled coroutine waits for its thread."""


def user_socket() -> str:
    """`$TIDEPOOL_STAGER_SOCKET`, else the caller's own stager's, else the node's."""
    return os.fspath(_native.user_socket())


def control_socket() -> str:
    """As `user_socket`, with `$TIDEPOOL_STAGER_CONTROL`."""
    return os.fspath(_native.control_socket())


class Stager:
    """A stager of this node.

    May be used by any number of threads at once: each waits for its own answer only, with the interpreter's lock
    released. A forked child, and nobody else, connects anew. A process that changes its user makes a new `Stager`,
    because stagers know connections by the rights they were made with. When the stager is restarted, the next request
    connects again.
    """

    def __init__(self, socket: str | os.PathLike[str] | None = None, control: bool = False) -> None:
        """Connects to the user socket, with `control` to the one for administration, or to the named one."""
        chosen = os.fspath(socket) if socket is not None else control_socket() if control else user_socket()
        self.socket: str = os.path.abspath(chosen)
        self._kept = _memory.of_stager(self.socket)
        self._connection: _native.Stager | None = None
        self._process = 0
        self._connect()

    def _connect(self) -> _native.Stager:
        connection = _native.Stager(self.socket, os.path.basename(sys.argv[0]) if sys.argv else "")
        self._connection, self._process = connection, os.getpid()
        return connection

    @property
    def _live(self) -> _native.Stager:
        if self._connection is None:
            raise ValueError("this Stager is closed")
        # A forked child must not read answers from its parent's connection.
        return self._connection if self._process == os.getpid() else self._connect()

    def close(self) -> None:
        """Ends the connection. Tasks go on, and memory they use is kept. Closing twice does nothing."""
        self._connection = None

    def __enter__(self) -> Stager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Stager({self.socket!r})"

    @property
    def node(self) -> str:
        """The stager's node."""
        return self._live.node()

    @property
    def pid(self) -> int:
        """The stager's process id."""
        return self._live.pid()

    @property
    def is_control(self) -> bool:
        """Whether administration is allowed here."""
        return self._live.is_control()

    def ping(self) -> None:
        """Returns when the stager answers."""
        self._live.ping()

    # Tasks.

    def submit(
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
        """Hands a task over and returns its id; it runs when its turn comes.

        `src` and `dst` are places, `nvme0://path` or `host:port/nvme0://path`, or memory: any object with the buffer
        protocol whose bytes lie one after the other. Its buffer is kept until the task has finished or is forgotten:
        it cannot be resized meanwhile, and should not be changed. For the other arguments see `TaskSpec`.

        Raises `ValueError` for what is no place, `BufferError` for memory that cannot be used so,
        `NoSuchDataspaceError`, `NoSuchResourceError`, `NotPermittedError`, `PausedError`, `TooManyTasksError`,
        `BadArgumentsError`, `NotSupportedError`; after an error with `may_be_done` the stager may have the task all
        the same.
        """
        return self.submit_task(TaskSpec(op, src, dst, priority, verify, bandwidth, size_hint, on_behalf))

    def submit_task(self, task: TaskSpec) -> int:
        """Does what `submit` does, with the same errors."""
        return self._hand_over(task, lambda live, bound: live.submit(bound), lambda id: id)

    def _hand_over(self, task: TaskSpec, ask: Callable[[_native.Stager, TaskSpec], T], number: Callable[[T], int]) -> T:
        """Asks with the task, and keeps its memory under the number that the answer has."""
        bound, buffers = _bind(task)
        if not buffers:
            return ask(self._live, bound)
        self._sweep()
        self._kept.hold(buffers)
        try:
            answer = ask(self._live, bound)
        except TidepoolError as error:
            self._not_submitted(buffers, error.may_be_done)
            raise
        except (ValueError, TypeError, OverflowError):
            self._kept.drop(buffers)
            raise
        self._kept.keep(number(answer), buffers)
        return answer

    def submit_and_wait(
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
        """Does what `submit` and `wait` do, with the same errors; asks once for what ends within a moment.

        When the task is with the stager and has not ended, as after `timeout` seconds (`WaitTimeoutError`), the
        attribute `task` of the error is its id.
        """
        task = TaskSpec(op, src, dst, priority, verify, bandwidth, size_hint, on_behalf)
        return self.submit_task_and_wait(task, timeout=timeout)

    def submit_task_and_wait(self, task: TaskSpec, timeout: float | None = None) -> TaskStatus:
        """Does what `submit_and_wait` does, with the same errors."""
        until = None if timeout is None else time.monotonic() + timeout
        status = self._submit_and_look(task, FIRST_WAIT_S if timeout is None else timeout)
        if status.state.ended:
            return status
        try:
            return self.wait(status.id, None if until is None else max(until - time.monotonic(), 0.0))
        except TidepoolError as error:
            error.task = status.id
            raise

    def _submit_and_look(self, task: TaskSpec, seconds: float) -> TaskStatus:
        limit = timedelta(seconds=min(max(seconds, 0.0), FIRST_WAIT_S))
        fields = self._hand_over(
            task, lambda live, bound: live.submit_and_wait_for(bound, limit), lambda fields: cast("int", fields["id"])
        )
        return self._seen(fields)

    def submit_many(self, tasks: Iterable[TaskSpec]) -> Submitted:
        """Hands many tasks over in as few requests as limits allow. A refused task does not keep the others.

        An error that ends it midway has what was done before in its attribute `submitted`.
        """
        bound = [_bind(task) for task in tasks]
        self._sweep()
        for _, buffers in bound:
            if buffers:
                self._kept.hold(buffers)
        try:
            done = _types.submitted(self._live.submit_many([task for task, _ in bound]))
        except TidepoolError as error:
            # `_native` attaches fields.
            error.submitted = _types.submitted(cast("Fields", error.submitted))
            self._sort_out(bound, error.submitted, error.may_be_done)
            raise
        except (ValueError, TypeError, OverflowError):
            self._sort_out(bound, Submitted((), {}), False)
            raise
        self._sort_out(bound, done, False)
        return done

    def _sort_out(self, bound: builtins.list[_Bound], done: Submitted, may_be_done: bool) -> None:
        for place, (_, buffers) in enumerate(bound):
            if not buffers:
                continue
            if place >= len(done.ids):
                self._not_submitted(buffers, may_be_done)
            elif done.ids[place]:
                self._kept.keep(done.ids[place], buffers)
            else:
                self._kept.drop(buffers)

    def _not_submitted(self, buffers: builtins.list[_native.Buffer], may_be_done: bool) -> None:
        if not may_be_done:
            self._kept.drop(buffers)

    def _sweep(self) -> None:
        def is_over(id: int) -> bool:
            try:
                return self.status(id).state is TaskState.FINISHED
            except NoSuchTaskError:
                return True

        self._kept.sweep(is_over)

    def _seen(self, fields: Fields) -> TaskStatus:
        status = _types.task_status(fields)
        if status.state is TaskState.FINISHED:
            self._kept.let_go(status.id)
        return status

    def status(self, id: int) -> TaskStatus:
        """How a task is. Raises `NoSuchTaskError`."""
        return self._seen(self._live.status(id))

    def wait(self, id: int, timeout: float | None = None) -> TaskStatus:
        """Waits until the task has ended, which does not mean that it succeeded: see `TaskStatus.check`.

        Raises `WaitTimeoutError` after `timeout` seconds and `NoSuchTaskError`.
        """
        return self.wait_many([id], timeout=timeout)[0]

    def wait_many(
        self, ids: Sequence[int], *, any: bool = False, timeout: float | None = None
    ) -> builtins.list[TaskStatus]:
        """Waits until all the tasks have ended, with `any` until one has: their statuses in the order of `ids`.

        Raises `WaitTimeoutError` after `timeout` seconds and `NoSuchTaskError`.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            # In slices, because Python runs no signal handler while it is outside.
            left = WAIT_SLICE_S if until is None else until - time.monotonic()
            try:
                return self._wait_once(ids, any, left)
            except WaitTimeoutError:
                if until is not None and until <= time.monotonic():
                    raise

    def _wait_once(self, ids: Sequence[int], any: bool, seconds: float) -> builtins.list[TaskStatus]:
        timeout = timedelta(seconds=min(max(seconds, 0.0), WAIT_SLICE_S))
        return [self._seen(fields) for fields in self._live.wait(list(ids), any, timeout)]

    def watch(self, id: int, interval: float = 0.5) -> Iterator[TaskStatus]:
        """The task's status now, about every `interval` seconds, and when it has ended. Raises `NoSuchTaskError`."""
        while True:
            status = self.status(id)
            yield status
            if status.state.ended:
                return
            try:
                yield self.wait(id, timeout=interval)
            except WaitTimeoutError:
                continue
            return

    def cancel(self, id: int) -> None:
        """Ends a task that has not ended; what it moved under final names stays.

        Raises `NoSuchTaskError` and, for an ended task, `TaskStateError`.
        """
        self._live.cancel(id)

    def resume(self, id: int) -> None:
        """Starts a failed or cancelled task again where it stopped.

        Raises `NoSuchTaskError`, `TaskStateError`, `PausedError`.
        """
        self._live.resume(id)

    def forget(self, id: int) -> None:
        """Forgets an ended task, and lets the memory go it used. Raises `NoSuchTaskError`, `TaskStateError`."""
        self._live.forget(id)
        self._kept.let_go(id)

    def list(self, job: int | None = None, only: TaskState | None = None) -> builtins.list[TaskStatus]:
        """All tasks the caller may see: of a job, or in a state, where these are given."""
        return [self._seen(fields) for fields in self._live.list(job, only)]

    def list_page(
        self, job: int | None = None, only: TaskState | None = None, *, after: int = 0, max: int
    ) -> tuple[builtins.list[TaskStatus], bool]:
        """At most `max` tasks with ids after `after`, and whether there are more."""
        tasks, more = self._live.list_page(job, only, after, max)
        return [self._seen(fields) for fields in tasks], more

    def plan(self, op: Op, src: End, dst: End | None = None, *, on_behalf: OnBehalf | None = None) -> Plan:
        """What a task would do: checked and counted, nothing moved. Raises what `submit` raises."""
        bound, buffers = _bind(TaskSpec(op, src, dst, on_behalf=on_behalf))
        try:
            return _types.plan(self._live.plan(bound))
        finally:
            _memory.release(buffers)

    def daemon_status(self) -> StagerStatus:
        """The stager as a whole."""
        return _types.stager_status(self._live.daemon_status())

    # Dataspaces and what lies in them.

    def dataspaces(self) -> builtins.list[DataspaceInfo]:
        """The dataspaces the caller may use."""
        return [_types.dataspace_info(fields) for fields in self._live.dataspaces()]

    def persist(self, op: PersistOp, dataspace: str, path: str, *, user: int = 0, expires: int = 0) -> int | None:
        """Keeps a location beyond its job, or ends or shares that.

        `user` is whom to share with, `expires` seconds since 1970, 0 for never. What is done to the files is a task:
        its id is returned; older stagers have one for `PersistOp.DELETE` only. Raises `NoSuchDataspaceError`,
        `NoSuchResourceError`, `NotPermittedError`.
        """
        return self._live.persist(op, dataspace, path, user, expires)

    def persisted(self) -> builtins.list[Persisted]:
        """The kept locations the caller may see."""
        return [_types.persisted(fields) for fields in self._live.persisted()]

    def job_report(self, job: int) -> JobReport:
        """What tasks of the caller's own job have moved so far, or of any for administrators.

        Raises `NoSuchJobError`, `NotPermittedError`.
        """
        return _types.job_report(self._live.job_report(job))

    # Administration: on the control socket, elsewhere `NotPermittedError`.

    def register_dataspace(self, dataspace: DataspaceSpec) -> None:
        """Raises `DataspaceExistsError`, `BadArgumentsError`, `NotPermittedError`."""
        self._live.register_dataspace(dataspace)

    def update_dataspace(self, dataspace: DataspaceSpec) -> None:
        """Raises `NoSuchDataspaceError`, `DataspaceBusyError`, `BadArgumentsError`, `NotPermittedError`."""
        self._live.update_dataspace(dataspace)

    def unregister_dataspace(self, name: str) -> None:
        """Raises `NoSuchDataspaceError`, `DataspaceBusyError`, `DataspaceNotEmptyError`, `NotPermittedError`."""
        self._live.unregister_dataspace(name)

    def register_job(self, job: JobSpec) -> None:
        """Raises `JobExistsError`, `NoSuchDataspaceError`, `NotPermittedError`."""
        self._live.register_job(job)

    def update_job(self, job: JobSpec) -> None:
        """Raises `NoSuchJobError`, `NoSuchDataspaceError`, `NotPermittedError`."""
        self._live.update_job(job)

    def unregister_job(self, job: int) -> Leftovers:
        """What tracked dataspaces still hold. Raises `NoSuchJobError`, `JobBusyError`, `NotPermittedError`."""
        return _types.leftovers(self._live.unregister_job(job))

    def add_process(self, job: int, process: ProcessSpec) -> None:
        """Raises `NoSuchJobError`, `BadArgumentsError`, `NotPermittedError`."""
        self._live.add_process(job, process)

    def remove_process(self, job: int, process: ProcessSpec) -> None:
        """Raises `NoSuchJobError`, `NoSuchProcessError`, `NotPermittedError`."""
        self._live.remove_process(job, process)

    def command(self, command: Command) -> None:
        """Pauses, resumes or shuts down; shutting down raises `TasksPendingError`, `DataspaceNotEmptyError`."""
        self._live.command(command)

    def jobs(self) -> builtins.list[JobSpec]:
        """All jobs. Raises `NotPermittedError`."""
        return [_types.job_spec(fields) for fields in self._live.jobs()]

    def leftovers(self, dataspace: str, max: int = 1000) -> Leftovers:
        """At most `max` entries that lie in a dataspace and are not kept.

        Raises `NoSuchDataspaceError`, `NotPermittedError`.
        """
        return _types.leftovers(self._live.leftovers(dataspace, max))

    def set_policy(self, policy: Policy) -> None:
        """The order in which pending tasks start. Raises `NotPermittedError`."""
        self._live.set_policy(policy)


if TYPE_CHECKING:
    _Bound = tuple[TaskSpec, "list[_native.Buffer]"]


def _bind(task: TaskSpec) -> _Bound:
    """The task with buffers in place of objects in memory, and these buffers."""
    src, dst = task.src, task.dst
    buffers: list[_native.Buffer] = []
    if not isinstance(src, str):
        buffers.append(_native.Buffer(src, False))
        task = replace(task, src=cast("End", buffers[-1]))
    if dst is not None and not isinstance(dst, str):
        buffers.append(_native.Buffer(dst, True))
        task = replace(task, dst=cast("End", buffers[-1]))
    return task, buffers
