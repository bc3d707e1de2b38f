"""What is asked of a stager and what it answers. Sizes are bytes, rates bytes per second."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Union

from tidepool.errors import TidepoolError, error

if TYPE_CHECKING:
    from typing_extensions import Buffer

    End = Union[str, Buffer]

Fields = dict[str, Any]


class Op(IntEnum):
    """What a task does."""

    COPY = 1
    MOVE = 2
    """The source is removed after the copy has been verified."""
    REMOVE = 3
    PERMIT = 4
    """Changes who may read a kept location; comes from `Stager.persist`, and cannot be submitted."""


class TaskState(IntEnum):
    """How far a task is."""

    PENDING = 1
    RUNNING = 2
    FINISHED = 3
    FAILED = 4
    CANCELLED = 5

    @property
    def ended(self) -> bool:
        """Finished, failed or cancelled."""
        return self not in (TaskState.PENDING, TaskState.RUNNING)


class TaskPhase(IntEnum):
    """What a task is at; a held one is pending until its job is released."""

    QUEUED = 1
    WALKING = 2
    COPYING = 3
    FINISHING = 4
    REMOVING = 5
    ENDED = 6
    HELD = 7


class PersistOp(IntEnum):
    """What is done to a location that outlives its job."""

    STORE = 1
    DELETE = 2
    SHARE = 3
    UNSHARE = 4


class Command(IntEnum):
    """What a stager is told."""

    PING = 1
    PAUSE = 2
    RESUME = 3
    SHUTDOWN = 4


class Policy(IntEnum):
    """Order in which pending tasks start. Tasks of higher priority start first under all of them."""

    FIRST_COME = 1
    SHORTEST_FIRST = 2
    FAIR_BY_JOB = 3
    FAIR_BY_USER = 4


class DataspaceKind(IntEnum):
    """What a dataspace is."""

    LOCAL = 1
    """A directory on storage of this node."""
    SHARED = 2
    """A mounted shared file system."""
    POOL = 3
    """A pool: the mount is its pool file."""
    OBJECT = 4
    """An object store: the mount is its URL."""


class Verify(IntEnum):
    """What is read back and compared before final names appear."""

    NO = 0
    YES = 1
    """What the kernel holds of it, unless the stager reads from disks."""
    DISK = 2
    """What the disk gives back, where the destination is on the stager's node."""


@dataclass(frozen=True)
class OnBehalf:
    """In whose name an administrator submits a task."""

    uid: int
    gid: int
    job: int = 0
    """0 for none."""


@dataclass(frozen=True)
class TaskSpec:
    """A task as it is submitted."""

    op: Op
    src: End
    """`nvme0://path`, `host:port/nvme0://path` at another stager, or memory: an object with the buffer protocol."""
    dst: End | None = None
    """As `src`; memory must be writable. None for `Op.REMOVE`."""
    priority: int = 0
    """Higher first."""
    verify: Verify | bool = True
    """What is read back and compared before final names appear; True is `Verify.YES`."""
    bandwidth: int = 0
    """Bytes per second; 0 for no limit of its own."""
    size_hint: int = 0
    """Bytes it will move as far as the submitter knows; 0 when not."""
    on_behalf: OnBehalf | None = None
    """Administrators only."""


@dataclass(frozen=True)
class Refusal:
    """Why something was not done."""

    code: int
    errno: int
    detail: str

    def exception(self) -> TidepoolError:
        """The exception that says the same."""
        return error(self.code, self.errno, self.detail)


@dataclass(frozen=True)
class TaskStatus:
    """How a task is."""

    id: int
    op: Op
    state: TaskState
    phase: TaskPhase
    refusal: Refusal | None
    """Why it failed or was cancelled."""
    job: int
    """0 for none."""
    uid: int
    src: str
    dst: str
    bytes_done: int
    bytes_total: int
    """Known so far; final when `total_known`."""
    files_done: int
    files_total: int
    total_known: bool
    rate: int
    """Bytes per second lately."""
    eta_ms: int | None
    """Milliseconds to its end; None when it cannot be told."""
    age_ms: int
    """Milliseconds since it was submitted, or from then to its end."""
    percent: int | None
    """Share of the whole while it runs, once the whole is known: bytes count half copied, half verified."""

    def check(self) -> TaskStatus:
        """Itself, or the exception that says why the task failed or was cancelled."""
        if self.refusal is not None:
            raise self.refusal.exception()
        return self


@dataclass(frozen=True)
class Submitted:
    """What became of many tasks submitted together."""

    ids: tuple[int, ...]
    """One for each task in their order; 0 where it was refused."""
    refused: dict[int, Refusal]
    """By place."""


@dataclass(frozen=True)
class Plan:
    """What a task would do."""

    files: int
    dirs: int
    bytes: int
    free: int | None
    """Bytes free at the destination; None where it cannot be told."""
    quota_left: int | None
    """Bytes the job may still put there; None without a limit."""
    estimate_ms: int | None
    """Milliseconds, as learned from earlier tasks; None before the first."""
    lead_ms: int | None
    """Milliseconds before the data are needed that it should start, so that few are late."""
    problems: tuple[str, ...]
    """What speaks against it; empty when nothing does."""


@dataclass(frozen=True)
class StagerStatus:
    """A whole stager."""

    node: str
    pending: int
    running: int
    ended: int
    eta_ms: int | None
    """Milliseconds until nothing is left to do; None when it cannot be told."""
    bytes_done: int
    rate: int
    paused: bool
    policy: Policy
    workers: int
    counters: dict[str, int]


@dataclass(frozen=True)
class DataspaceSpec:
    """A dataspace as it is registered."""

    name: str
    """With `://` at its end."""
    kind: DataspaceKind
    mount: str
    tracked: bool = False
    """What is left in it is told when jobs or the daemon end."""
    capacity: int = 0
    """Bytes that tasks may put there in all; 0 for no limit."""
    streams_max: int = 0
    """Tasks at a time; 0 for no limit."""
    bandwidth: int = 0
    """Bytes per second of all tasks together; 0 for no limit."""


@dataclass(frozen=True)
class DataspaceInfo:
    """A dataspace as the caller may use it."""

    dataspace: DataspaceSpec
    quota: int
    """Bytes the caller's job may put there; 0 for no limit."""
    used: int
    """Bytes tasks of the caller's job have put there."""


@dataclass(frozen=True)
class JobLimit:
    """A dataspace that a job may use."""

    dataspace: str
    quota: int = 0
    """Bytes; 0 for no limit."""


@dataclass(frozen=True)
class JobSpec:
    """A job: its nodes, and the dataspaces it may use."""

    id: int
    hosts: tuple[str, ...] = ()
    limits: tuple[JobLimit, ...] = ()
    bandwidth: int = 0
    """Bytes per second of all its tasks together; 0 for no limit."""


@dataclass(frozen=True)
class ProcessSpec:
    """A process of a job."""

    pid: int
    uid: int
    gid: int


@dataclass(frozen=True)
class PairReport:
    """What went from one dataspace to another."""

    src: str
    dst: str
    bytes: int
    files: int
    busy_ms: int


@dataclass(frozen=True)
class JobReport:
    """What staging a job has cost."""

    job: int
    tasks: int
    failed: int
    bytes: int
    files: int
    busy_ms: int
    """Milliseconds that tasks ran, added up."""
    pairs: tuple[PairReport, ...]


@dataclass(frozen=True)
class Leftover:
    """Something that lies in a dataspace and is not persisted."""

    dataspace: str
    path: str
    directory: bool
    size: int
    uid: int


@dataclass(frozen=True)
class Leftovers:
    """Some of what lies in dataspaces."""

    entries: tuple[Leftover, ...]
    more: bool
    """There is more than this."""


@dataclass(frozen=True)
class Persisted:
    """A location that outlives its job."""

    dataspace: str
    path: str
    owner: int
    shared: tuple[int, ...]
    """Users who may read it."""
    expires: int
    """Seconds since 1970; 0 for never."""


def _refusal(fields: Fields) -> Refusal | None:
    return Refusal(**fields) if fields["code"] else None


def task_status(fields: Fields) -> TaskStatus:
    """From the fields that `_native` gives, as all functions here."""
    return TaskStatus(
        **{
            **fields,
            "op": Op(fields["op"]),
            "state": TaskState(fields["state"]),
            "phase": TaskPhase(fields["phase"]),
            "refusal": _refusal(fields["refusal"]),
        }
    )


def submitted(fields: Fields) -> Submitted:
    """See `task_status`."""
    return Submitted(tuple(fields["ids"]), {place: Refusal(**why) for place, why in fields["refused"]})


def plan(fields: Fields) -> Plan:
    """See `task_status`."""
    return Plan(**{**fields, "problems": tuple(fields["problems"])})


def stager_status(fields: Fields) -> StagerStatus:
    """See `task_status`."""
    return StagerStatus(**{**fields, "policy": Policy(fields["policy"]), "counters": dict(fields["counters"])})


def dataspace_info(fields: Fields) -> DataspaceInfo:
    """See `task_status`."""
    spec = fields["dataspace"]
    return DataspaceInfo(**{**fields, "dataspace": DataspaceSpec(**{**spec, "kind": DataspaceKind(spec["kind"])})})


def job_spec(fields: Fields) -> JobSpec:
    """See `task_status`."""
    limits = tuple(JobLimit(**limit) for limit in fields["limits"])
    return JobSpec(**{**fields, "hosts": tuple(fields["hosts"]), "limits": limits})


def _pair(fields: Fields) -> PairReport:
    rest = {name: value for name, value in fields.items() if name not in ("from", "to")}
    return PairReport(src=fields["from"], dst=fields["to"], **rest)


def job_report(fields: Fields) -> JobReport:
    """See `task_status`."""
    return JobReport(**{**fields, "pairs": tuple(_pair(pair) for pair in fields["pairs"])})


def leftovers(found: tuple[list[Fields], bool]) -> Leftovers:
    """See `task_status`."""
    entries, more = found
    return Leftovers(tuple(Leftover(**entry) for entry in entries), more)


def persisted(fields: Fields) -> Persisted:
    """See `task_status`."""
    return Persisted(**{**fields, "shared": tuple(fields["shared"])})
