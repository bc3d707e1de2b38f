"""The Linux Test Project: its file system tests, and those of fcntl and flock."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import trees
from doors import Place, Ran
from suite import Wanted, by_code
from verdicts import Outcome, Verdict

PIN = trees.Git("https://github.com/linux-test-project/ltp.git", "695827725f4fc14fe583043127e0335c29bbd52d")
TESTS = ("testcases/lib", "testcases/kernel/syscalls/fcntl", "testcases/kernel/syscalls/flock", "testcases/kernel/fs",
         "testcases/kernel/io/writetest")  # fmt: skip
BUILD = """set -eu
make autotools
./configure --prefix="$PWD/installed" --disable-metadata --without-numa
for folder in lib libs tools/apicmds {tests}; do make -j"$(nproc)" -C $folder; done
for folder in tools/apicmds {tests}; do make -C $folder install; done
""".format(tests=" ".join(TESTS))
# TCONF: what the test is of is not there.
SKIP = 32
# They read /proc, /dev and /sys, whatever file system they are started in.
ELSEWHERE = ("proc01", "read_all_dev", "read_all_proc", "read_all_sys")
LOCKS = re.compile(r"(fcntl|flock)\d")
FAULT = re.compile(r"^.*\b(?:TFAIL|TBROK|TWARN)\b.*$", re.MULTILINE)
# Scripts go on without a program that is missing, and end with 0.
WITHOUT = re.compile(r"^\S+: (?:line )?\d+: (?:\S+: (?:command )?not found|\./\S+: No such file or directory)$", re.MULTILINE)
# They start what lies beside them by `./`; everything else is started in the pool.
AMONG_PROGRAMS = ("fs_racer",)
# They attach a file to a loop device. Through preload the kernel would see the file's placeholder; then they fail to clear the device,
# remove its node in /dev in place of a file, and leave it attached.
WITH_DEVICE = re.compile(r"acl_.*|fs_fill|inode01")
TEST_SECONDS_MAX = 900


class Ltp:
    name = "ltp"
    title = "LTP's lists fs, and fcntl and flock of syscalls"
    doors = ("below", "fuse", "preload")
    # Through preload without those of WITH_DEVICE.
    floors = {"below": 140, "fuse": 140, "preload": 132}
    user = None

    def prepare(self, all_trees: trees.Trees) -> None:
        if os.geteuid() != 0:
            raise trees.Missing("it becomes other users, which takes root")
        tree = all_trees.built(self.name, PIN, [["sh", "-c", BUILD]])
        self.root = tree / "installed"
        self.tests = lists((tree / "runtest/fs").read_text(), (tree / "runtest/syscalls").read_text())

    def outcomes(self, place: Place, wanted: Wanted) -> Iterator[Outcome]:
        for test, command in self.tests.items():
            if not wanted(test):
                continue
            if place.door == "preload" and WITH_DEVICE.fullmatch(test):
                yield Outcome(test, Verdict.SKIPPED, "it attaches a file to a loop device, by which the kernel sees its placeholder")
                continue
            there = place.make(f"ltp-{test}")
            env = self.environment(place, place.top / there)
            words = ["sh", "-c", command_of(test, command, place.seconds)]
            yield outcome(test, place.run(test, words, TEST_SECONDS_MAX, there, env))
            place.remove(there)

    def environment(self, place: Place, there: Path) -> dict[str, str]:
        own = f"{self.root}/testcases/bin:{os.environ['PATH']}"
        # Its own limits of time are of ordinary builds on an idle machine.
        return {"LTPROOT": str(self.root), "PATH": own, "TMPDIR": str(there), "LTP_TIMEOUT_MUL": "4", "LTP_COLORIZE_OUTPUT": "n"}


def lists(fs: str, syscalls: str) -> dict[str, str]:
    """Name and shell command of each test."""
    found: dict[str, str] = {}
    for text, wanted in ((fs, lambda test: test not in ELSEWHERE), (syscalls, LOCKS.match)):
        for line in text.splitlines():
            test, _, command = line.strip().partition(" ") if " " in line.strip() else line.strip().partition("\t")
            if command and not test.startswith("#") and wanted(test):
                found[test] = command.strip()
    return found


def command_of(test: str, command: str, seconds: int) -> str:
    there = 'cd "$LTPROOT/testcases/bin" && ' if test in AMONG_PROGRAMS else ""
    return there + shortened(command, seconds)


def shortened(command: str, seconds: int) -> str:
    """Programs that run for a time (growfiles -L N, rwtest -i Ns) do so for at most `seconds`."""

    def less(match: re.Match[str]) -> str:
        return f"{match[1]}{min(int(match[2]), seconds)}{match[3]}"

    return re.sub(r"(-L )(\d+)()", less, re.sub(r"(-i )(\d+)(s)", less, command))


def outcome(test: str, ran: Ran) -> Outcome:
    found = by_code(test, ran, TEST_SECONDS_MAX, (SKIP,))
    fault = FAULT.search(ran.said)
    if found.verdict == Verdict.FAILED and fault:
        return Outcome(test, Verdict.FAILED, fault[0].strip()[:300])
    without = WITHOUT.search(ran.said)
    if found.verdict == Verdict.PASSED and without:
        return Outcome(test, Verdict.FAILED, f"it has run without a program of its own: {without[0]}")
    return found
