"""Why the stager's answer is no: one exception for each meaning, all of them `TidepoolError`.

Match on the class (or on `.code`, the number of the published NORNS interface), never on the text.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidepool._types import Submitted


class TidepoolError(Exception):
    """What everything raised here descends from. Itself it is raised for codes of newer stagers only."""

    code: int
    """Number of the published interface, -1 to -201."""
    errno: int
    """Error number of the operating system where there is one, else 0."""
    detail: str
    """What, where, what to do."""
    may_be_done: bool
    """The stager may have carried the request out although nobody can tell: look before asking again."""
    submitted: Submitted | None
    """For `submit_many`: the tasks before the one the error is about, which are with the stager."""
    task: int | None
    """For `submit_and_wait`: the number of the task that had not ended in time, or that could not be waited for."""

    def __init__(self, code: int, errno: int = 0, detail: str = "", may_be_done: bool = False) -> None:
        super().__init__(code, errno, detail, may_be_done)
        self.code = code
        self.errno = errno
        self.detail = detail
        self.may_be_done = may_be_done
        self.submitted = None
        self.task = None

    def __str__(self) -> str:
        return self.detail


class InternalError(TidepoolError):
    """The stager met a fault of its own."""


class BadArgumentsError(TidepoolError):
    """The arguments make no sense, or are too long."""


class BadRequestError(TidepoolError):
    """The stager did not understand the request."""


class NoMemoryError(TidepoolError):
    """The stager has no memory left."""


# There `errno` may be None; here it never is.
class WaitTimeoutError(TidepoolError, builtins.TimeoutError):  # type: ignore[misc]
    """The tasks had not ended in time. Also a `TimeoutError` of Python."""


class ConnectionFailedError(TidepoolError):
    """No stager, or one of another version: nothing was asked."""


class SendFailedError(TidepoolError):
    """The connection ended before the request left: nothing was asked."""


class ReceiveFailedError(TidepoolError):
    """The connection ended before the answer came: see `may_be_done`."""


class PausedError(TidepoolError):
    """The stager takes no new tasks at the moment."""


class JobExistsError(TidepoolError):
    """There is a job of this number."""


class NoSuchJobError(TidepoolError):
    """There is no job of this number."""


class JobBusyError(TidepoolError):
    """The job has tasks that have not ended."""


class ProcessExistsError(TidepoolError):
    """The process belongs to a job."""


class NoSuchProcessError(TidepoolError):
    """The process does not belong to the job."""


class DataspaceExistsError(TidepoolError):
    """There is a dataspace of this name."""


class NoSuchDataspaceError(TidepoolError):
    """There is no dataspace of this name that the caller may use."""


class DataspaceNotEmptyError(TidepoolError):
    """The tracked dataspace holds what is not persisted."""


class DataspaceBusyError(TidepoolError):
    """Tasks that have not ended use the dataspace."""


class TaskExistsError(TidepoolError):
    """There is a task of this number."""


class NoSuchTaskError(TidepoolError):
    """There is no task of this number that the caller may see."""


class TooManyTasksError(TidepoolError):
    """The stager's queue is full."""


class TasksPendingError(TidepoolError):
    """Tasks have not ended."""


class TaskCancelledError(TidepoolError):
    """The task was cancelled."""


class TaskStateError(TidepoolError):
    """Not possible in the task's state."""


class NotPermittedError(TidepoolError):
    """Administration by others, processes of no job, dataspaces of other jobs."""


class ResourceExistsError(TidepoolError):
    """The destination exists."""


class NoSuchResourceError(TidepoolError):
    """The source does not exist."""


class NotSupportedError(TidepoolError):
    """The stager cannot do this."""


class OperatingSystemError(TidepoolError):
    """The operating system refused: `errno` says how."""


CLASSES: dict[int, type[TidepoolError]] = {
    -1: InternalError,
    -2: BadArgumentsError,
    -3: BadRequestError,
    -4: NoMemoryError,
    -5: WaitTimeoutError,
    -6: ConnectionFailedError,
    -7: SendFailedError,
    -8: ReceiveFailedError,
    -9: PausedError,
    -10: JobExistsError,
    -11: NoSuchJobError,
    -12: JobBusyError,
    -20: ProcessExistsError,
    -21: NoSuchProcessError,
    -30: DataspaceExistsError,
    -31: NoSuchDataspaceError,
    -32: DataspaceNotEmptyError,
    -33: DataspaceBusyError,
    -40: TaskExistsError,
    -41: NoSuchTaskError,
    -42: TooManyTasksError,
    -43: TasksPendingError,
    -44: TaskCancelledError,
    -45: TaskStateError,
    -50: NotPermittedError,
    -110: ResourceExistsError,
    -111: NoSuchResourceError,
    -200: NotSupportedError,
    -201: OperatingSystemError,
}
"""The class of each code. A test compares it with the stager's own list."""


def error(code: int, errno: int = 0, detail: str = "", may_be_done: bool = False) -> TidepoolError:
    """The exception for a code."""
    return CLASSES.get(code, TidepoolError)(code, errno, detail, may_be_done)
