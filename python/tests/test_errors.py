from __future__ import annotations

import enum
import pickle

import pytest

from conftest import Daemon
from tidepool import _native, _types, errors
from tidepool.errors import NotPermittedError, OperatingSystemError, TidepoolError, WaitTimeoutError
from tidepool.stage import Command, JobSpec, Policy, Stager


def test_every_code_has_a_class_of_its_own() -> None:
    codes = {number for number, _, _ in _native.codes() if number != 0}
    assert codes == set(errors.CLASSES)
    assert len(set(errors.CLASSES.values())) == len(codes)
    for number, kind in errors.CLASSES.items():
        made = errors.error(number, 7, "what to do", True)
        assert type(made) is kind
        assert isinstance(made, TidepoolError)
        assert (made.code, made.errno, made.detail, made.may_be_done) == (number, 7, "what to do", True)
        assert str(made) == "what to do"


def test_every_class_is_in_the_table() -> None:
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TidepoolError)}
    assert kinds - set(errors.CLASSES.values()) == {TidepoolError}


def test_codes_of_newer_stagers_are_errors_too() -> None:
    assert type(errors.error(-9999)) is TidepoolError


@pytest.mark.parametrize("kind", [OperatingSystemError, WaitTimeoutError])
def test_errors_travel_between_processes(kind: type[TidepoolError]) -> None:
    made = pickle.loads(pickle.dumps(kind(-201, 28, "full", False)))
    assert type(made) is kind
    assert (made.code, made.errno, made.detail) == (-201, 28, "full")


def test_enumerations_are_the_stagers() -> None:
    for name, members in _native.enums().items():
        kind: type[enum.IntEnum] = getattr(_types, name)
        assert {member.name.replace("_", "").lower(): member.value for member in kind} == {
            member.lower(): number for member, number in members.items()
        }, name
    ours = {name for name, kind in vars(_types).items() if isinstance(kind, enum.EnumMeta)} - {"IntEnum"}
    assert ours == set(_native.enums())


def test_administration_is_refused_on_the_user_socket(daemon: Daemon) -> None:
    with Stager(daemon.user) as stager:
        for ask in (
            lambda: stager.register_job(JobSpec(1)),
            lambda: stager.command(Command.SHUTDOWN),
            lambda: stager.set_policy(Policy.FIRST_COME),
            stager.jobs,
        ):
            with pytest.raises(NotPermittedError) as caught:
                ask()
            assert caught.value.code == -50
