from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from conftest import Daemon
from tidepool.errors import (
    DataspaceExistsError,
    DataspaceNotEmptyError,
    JobExistsError,
    NoSuchDataspaceError,
    NoSuchJobError,
    NoSuchProcessError,
    PausedError,
)
from tidepool.stage import (
    Command,
    DataspaceInfo,
    DataspaceKind,
    DataspaceSpec,
    JobLimit,
    JobSpec,
    OnBehalf,
    Op,
    PersistOp,
    Policy,
    ProcessSpec,
    Stager,
)

if TYPE_CHECKING:
    from pathlib import Path

JOB = JobSpec(7, ("localhost",), (JobLimit("a://", 1 << 20), JobLimit("b://")), 1 << 30)
ME = ProcessSpec(os.getpid(), os.getuid(), os.getgid())


def test_dataspaces(stager: Stager, tmp_path: Path) -> None:
    assert [info.dataspace.name for info in stager.dataspaces()] == ["a://", "b://"]
    (tmp_path / "c").mkdir()
    spec = DataspaceSpec("c://", DataspaceKind.LOCAL, str(tmp_path / "c"), True, 1 << 30, 2, 1 << 20)
    stager.register_dataspace(spec)
    assert DataspaceInfo(spec, 0, 0) in stager.dataspaces()
    with pytest.raises(DataspaceExistsError):
        stager.register_dataspace(spec)
    changed = DataspaceSpec("c://", DataspaceKind.SHARED, str(tmp_path / "c"), tracked=True)
    stager.update_dataspace(changed)
    assert changed in [info.dataspace for info in stager.dataspaces()]
    (tmp_path / "c" / "x").write_bytes(b"12")
    with pytest.raises(DataspaceNotEmptyError):
        stager.unregister_dataspace("c://")
    (left,) = stager.leftovers("c://").entries
    assert (left.dataspace, left.path.strip("/"), left.directory, left.size) == ("c://", "x", False, 2)
    (tmp_path / "c" / "x").unlink()
    stager.unregister_dataspace("c://")
    with pytest.raises(NoSuchDataspaceError):
        stager.unregister_dataspace("c://")


def test_jobs_and_processes(daemon: Daemon, stager: Stager) -> None:
    stager.register_job(JOB)
    assert stager.jobs() == [JOB]
    with pytest.raises(JobExistsError):
        stager.register_job(JOB)
    changed = JobSpec(7, ("localhost",), (JobLimit("a://", 5), JobLimit("b://")))
    stager.update_job(changed)
    assert stager.jobs() == [changed]
    stager.add_process(7, ME)
    with Stager(daemon.user) as mine:
        (daemon.dir / "b" / "x").write_bytes(b"12345")
        status = mine.wait(mine.submit(Op.COPY, "b://x", "a://x")).check()
        assert status.job == 7
        assert [info.quota for info in mine.dataspaces()] == [5, 0]
        report = mine.job_report(7)
    assert (report.job, report.tasks, report.failed, report.bytes, report.files) == (7, 1, 0, 5, 1)
    (pair,) = report.pairs
    assert (pair.bytes, pair.files) == (5, 1)
    assert pair.src.startswith("b://")
    assert pair.dst.startswith("a://")
    assert [status.job for status in stager.list(job=7)] == [7]
    stager.remove_process(7, ME)
    with pytest.raises(NoSuchProcessError):
        stager.remove_process(7, ME)
    left = stager.unregister_job(7)
    assert not left.more
    with pytest.raises(NoSuchJobError):
        stager.unregister_job(7)


def test_on_behalf_of_a_user(daemon: Daemon, stager: Stager) -> None:
    stager.register_job(JOB)
    (daemon.dir / "b" / "x").write_bytes(b"1")
    id = stager.submit(Op.COPY, "b://x", "a://x", on_behalf=OnBehalf(os.getuid(), os.getgid(), 7))
    assert stager.wait(id).check().job == 7


def test_persisting(daemon: Daemon, stager: Stager) -> None:
    (daemon.dir / "a" / "x").write_bytes(b"1")
    expires = int(time.time()) + 3600
    id = stager.persist(PersistOp.STORE, "a://", "x", expires=expires)
    assert id is not None
    assert stager.wait(id).check().op == Op.PERMIT
    assert (daemon.dir / "a" / "x").stat().st_mode & 0o077 == 0
    id = stager.persist(PersistOp.SHARE, "a://", "x", user=4711)
    assert id is not None
    stager.wait(id).check()
    # The mask of its list shows as the group's permissions.
    assert (daemon.dir / "a" / "x").stat().st_mode & 0o077 == 0o040
    (kept,) = stager.persisted()
    assert (kept.dataspace, kept.path.strip("/"), kept.owner, kept.shared, kept.expires) == (
        "a://",
        "x",
        os.getuid(),
        (4711,),
        expires,
    )
    stager.persist(PersistOp.UNSHARE, "a://", "x", user=4711)
    assert stager.persisted()[0].shared == ()
    id = stager.persist(PersistOp.DELETE, "a://", "x")
    assert id is not None
    stager.wait(id).check()
    assert stager.persisted() == []
    assert not (daemon.dir / "a" / "x").exists()


def test_the_stager_as_a_whole(daemon: Daemon, stager: Stager) -> None:
    for policy in Policy:
        stager.set_policy(policy)
        assert stager.daemon_status().policy is policy
    stager.command(Command.PING)
    stager.command(Command.PAUSE)
    assert stager.daemon_status().paused
    with pytest.raises(PausedError):
        stager.submit(Op.REMOVE, "a://x")
    stager.command(Command.RESUME)
    status = stager.daemon_status()
    assert (status.paused, status.pending, status.node) == (False, 0, stager.node)
    assert status.workers > 0
    assert all(isinstance(count, int) for count in status.counters.values())
    assert (stager.is_control, stager.pid) == (True, daemon.process.pid)
    stager.command(Command.SHUTDOWN)
    assert daemon.process.wait() == 0
