"""Tests of what needs no pool: python3 -m unittest discover scripts/suites."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path

import hdf5
import ltp
import pjdfstest
import stress_ng
import trees
import xfstests
from doors import MARK, NOT_THE_POOL, Place, Ran
from suite import by_code
from verdicts import BadExclusions, Outcome, Row, Verdict, judge, read_exclusions, table

HERE = Path(__file__).parent
PASSED, FAILED, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.SKIPPED


def judged(outcomes: list[Outcome], exclusions: str = "", below: tuple[str, ...] = (), **how: object) -> Row:
    return judge("s", "fuse", outcomes, read_exclusions(exclusions), set(below), **{"floor": 1, **how})  # type: ignore[arg-type]


class Judging(unittest.TestCase):
    def test_what_fails_without_a_reason_is_wrong(self) -> None:
        row = judged([Outcome("a", PASSED), Outcome("b", FAILED, "why")])
        self.assertEqual((row.passed, row.failed, row.wrong), (1, 1, ["b: why"]))

    def test_what_is_excluded_for_this_door_may_fail_and_for_another_may_not(self) -> None:
        outcomes = [Outcome("a", FAILED, "why"), Outcome("b", PASSED)]
        self.assertEqual(judged(outcomes, "s | fuse | a | r").wrong, [])
        self.assertEqual(judged(outcomes, "s | both | a | r").excluded, 1)
        self.assertEqual(judged(outcomes, "s | preload | a | r").failed, 1)
        self.assertEqual(judged(outcomes, "t | fuse | a | r").failed, 1)

    def test_an_excluded_test_that_passes_is_wrong_unless_it_only_fails_sometimes(self) -> None:
        row = judged([Outcome("a", PASSED)], "s | fuse | a | r")
        self.assertEqual((row.passed, row.stale), (1, 1))
        self.assertIn("PASSES", row.wrong[0])
        self.assertEqual(judged([Outcome("a", PASSED)], "s | fuse | a | sometimes: r").wrong, [])

    def test_an_exclusion_without_its_test_is_wrong_where_all_were_asked_for(self) -> None:
        self.assertEqual(judged([Outcome("a", PASSED)], "s | fuse | gone | r").stale, 1)
        self.assertEqual(judged([Outcome("a", PASSED)], "s | fuse | gone | r", whole=False).wrong, [])

    def test_what_fails_below_as_well_is_no_fault_and_no_run_either(self) -> None:
        row = judged([Outcome("a", FAILED), Outcome("b", PASSED)], below=("a",))
        self.assertEqual((row.run, row.below, row.failed, row.wrong), (2, 1, 0, []))
        # All fail everywhere: nothing was tested.
        self.assertNotEqual(judged([Outcome("a", FAILED)], below=("a",)).wrong, [])

    def test_too_few_tests_are_wrong_and_skipped_ones_did_not_run(self) -> None:
        few = [Outcome("a", PASSED), Outcome("b", SKIPPED)]
        self.assertEqual(judged(few, floor=1).wrong, [])
        self.assertNotEqual(judged(few, floor=2).wrong, [])
        self.assertNotEqual(judged([], whole=False).wrong, [])

    def test_a_name_that_comes_twice_hides_nothing(self) -> None:
        row = judged([Outcome("a", PASSED), Outcome("a", PASSED)])
        self.assertEqual(row.wrong, ["a: reported twice"])

    def test_bad_lists_are_refused_with_their_line(self) -> None:
        for text in ("s | fuse | a", "s | fuse | a | ", "s | below | a | r", "s | fuse | a | r\ns | both | a | r"):
            with self.assertRaisesRegex(BadExclusions, "line [12]"):
                read_exclusions("# words\n"[:0] + text)

    def test_numbers_of_one_name_stand_in_one_line_and_each_is_held_to_it(self) -> None:
        text = "s | fuse | a/b 2-4,7 | r\ns | fuse | a-1 | r"
        self.assertEqual([e.test for e in read_exclusions(text)], ["a/b 2", "a/b 3", "a/b 4", "a/b 7", "a-1"])
        outcomes = [Outcome(f"a/b {n}", FAILED, "why") for n in (2, 3, 5)] + [Outcome("a/b 4", PASSED), Outcome("a-1", FAILED)]
        row = judged(outcomes, text)
        self.assertEqual((row.excluded, row.failed), (3, 1))
        self.assertEqual([line.partition(":")[0] for line in row.wrong], ["a/b 5", "a/b 4", "a/b 7"])
        for twice in ("s | fuse | a 1-3 | r\ns | fuse | a 3 | r", "s | fuse | a 3-2 | r"):
            with self.assertRaisesRegex(BadExclusions, "line [12]"):
                read_exclusions(twice)

    def test_our_own_list_can_be_read(self) -> None:
        read_exclusions((HERE / "exclusions").read_text())

    def test_the_table_has_a_line_a_row(self) -> None:
        self.assertEqual(len(table([Row("s", "fuse"), Row("t", "preload")]).splitlines()), 3)


class Nowhere:
    """A place where each program passes."""

    seconds, top = 1, Path("/pool")

    def __init__(self, door: str) -> None:
        self.door = door

    def make(self, name: str) -> str:
        return name

    def remove(self, name: str) -> None:
        pass

    def run(self, *_: object) -> Ran:
        return Ran(0, "")


class Reading(unittest.TestCase):
    def test_pjdfstest_tells_numbers_and_what_its_authors_expect(self) -> None:
        said = "1..4\nok 1\nnot ok 2 - tried 'x', expected 0, got EPERM\nnot ok 3 # TODO known\nok 4 # TODO known\n"
        found = pjdfstest.read("chmod/00", Ran(0, said))
        self.assertEqual([o.verdict for o in found], [PASSED, FAILED, SKIPPED, PASSED])
        self.assertEqual((found[1].test, found[1].why), ("chmod/00 2", "tried 'x', expected 0, got EPERM"))

    def test_a_file_of_pjdfstest_that_stops_early_has_failed(self) -> None:
        for ran in (Ran(0, "1..2\nok 1\n"), Ran(0, ""), Ran(1, "1..1\nok 1\n"), Ran(None, "1..1\nok 1\n")):
            self.assertEqual(pjdfstest.read("a/00", ran)[-1].verdict, FAILED, ran)

    def test_stress_ng_fails_by_its_code_and_by_its_words(self) -> None:
        self.assertEqual(stress_ng.outcome("x", Ran(0, "stress-ng: info:  [1] successful run"), 1).verdict, PASSED)
        self.assertEqual(stress_ng.outcome("x", Ran(2, "fail"), 1).verdict, FAILED)
        wrong = stress_ng.outcome("x", Ran(0, "stress-ng: fail:  [12] x: bad byte\n"), 1)
        self.assertEqual((wrong.verdict, wrong.why), (FAILED, "x: bad byte"))
        self.assertEqual(stress_ng.outcome("x", Ran(4, "no"), 1).verdict, SKIPPED)
        self.assertEqual(stress_ng.outcome("x", Ran(None, ""), 1).verdict, FAILED)
        apart = "stress-ng: info:  [9] disabled 'x' as it may hang or reboot the machine (enable it with the --pathological option)\n"
        nobody = "stress-ng: error: [9] No stress workers invoked\n"
        self.assertEqual(stress_ng.outcome("x", Ran(1, apart + nobody), 1).verdict, SKIPPED)
        self.assertEqual(stress_ng.outcome("x", Ran(1, nobody), 1).verdict, FAILED)
        self.assertEqual(stress_ng.stressors("class 'filesystem' stressors: access dir\n"), ["access", "dir"])

    def test_hdf5_lists_are_read_with_what_they_refer_to(self) -> None:
        makefile = "EXTRA = c.sh\n#GONE = d.sh\nTESTS = a.sh \\\n\tb$(EXEEXT) $(EXTRA) \\\n\t$(GONE)\n"
        self.assertEqual(hdf5.listed(makefile, "TESTS"), ["a.sh", "b", "c.sh"])
        with self.assertRaises(trees.Missing):
            hdf5.listed(makefile, "GONE")

    def test_hdf5_tests_find_what_lies_beside_them_and_the_sources_as_in_the_tree(self) -> None:
        with tempfile.TemporaryDirectory() as home:
            for name in ("serial/src/H5pubconf.h", "serial/test/flush1", "serial/test/.libs/flush1", "pool/x"):
                Path(home, name).parent.mkdir(parents=True, exist_ok=True)
                Path(home, name).touch()
            words = ["sh", "-c", hdf5.FURNISH, "sh", f"{home}/serial/test", hdf5.TESTS]
            subprocess.run(words, cwd=f"{home}/pool", check=True)
            for name in ("../src/H5pubconf.h", "flush1", ".libs/flush1"):
                self.assertTrue(Path(home, "pool", hdf5.TESTS, name).exists(), name)

    def test_hdf5_tests_that_read_the_files_of_others_run_behind_them(self) -> None:
        for first, second in (("flush1", "flush2"), ("t_pshutdown", "t_prestart")):
            words = hdf5.behind(second, lambda name: ["echo", name])
            self.assertEqual(subprocess.run(words, check=True, capture_output=True, text=True).stdout.split(), [first, second])
            self.assertEqual(hdf5.behind(first, lambda name: ["echo", name]), ["echo", first])

    def test_hdf5_pairs_run_one_after_the_other(self) -> None:
        for between, codes, last in (("&&", (0, 3), 3), ("&&", (4, 0), 4), (";", (4, 0), 0), (";", (0, 5), 5)):
            both = [word for code in codes for word in ("sh", "-c", f"exit {code}")]
            self.assertEqual(subprocess.run(hdf5.in_turn(between, both), check=False).returncode, last)

    def test_ltp_lists_are_read_and_shortened(self) -> None:
        found = ltp.lists("#x\ngf01 growfiles -L 20 -d $TMPDIR\nlftest01\tlftest\nproc01 proc01 -m 128\n", "fcntl01 fcntl01\nfchmod01 fchmod01\n")
        self.assertEqual(found, {"gf01": "growfiles -L 20 -d $TMPDIR", "lftest01": "lftest", "fcntl01": "fcntl01"})
        self.assertEqual(ltp.shortened("growfiles -L 20 -i 0", 5), "growfiles -L 5 -i 0")
        self.assertEqual(ltp.shortened("rwtest -i 60s -n 2", 90), "rwtest -i 60s -n 2")

    def test_ltp_fails_by_any_bit_but_that_of_not_here(self) -> None:
        self.assertEqual(ltp.outcome("x", Ran(32, "TCONF: no")).verdict, SKIPPED)
        self.assertEqual(ltp.outcome("x", Ran(33, "a.c:1: TFAIL: wrong\nSummary")).why, "a.c:1: TFAIL: wrong")

    def test_ltp_fails_where_a_script_does_not_find_its_programs_and_ends_with_0(self) -> None:
        for said in (
            "/x/fs_racer.sh: line 37: ./fs_racer_file_create.sh: No such file or directory\nCleaning up\n",
            "Loops: 10\n/x/fs_di: 187: tst_resm: not found\n",
            "/x/rwtest: line 124: tst_resm: command not found\nTest passed\n",
        ):
            found = ltp.outcome("x", Ran(0, said))
            self.assertEqual((found.verdict, found.why.partition(": ")[0]), (FAILED, "it has run without a program of its own"))
        # Of files that others remove in the meantime.
        race = "/x/fs_racer_file_concat.sh: line 30: /p/race/3: No such file or directory\ncat: /p/race/7: No such file or directory\n"
        self.assertEqual(ltp.outcome("x", Ran(0, race)).verdict, PASSED)

    def test_ltp_attaches_no_placeholder_to_a_device_of_the_machine(self) -> None:
        suite = ltp.Ltp()
        suite.root, suite.tests = Path("/ltp"), {name: "true" for name in ("gf01", "inode01", "acl_mask01")}
        for door, ran in (("preload", ["gf01"]), ("fuse", ["gf01", "inode01", "acl_mask01"])):
            found = list(suite.outcomes(Nowhere(door), lambda _: True))
            self.assertEqual([o.test for o in found if o.verdict == PASSED], ran)
            self.assertEqual([o.verdict for o in found if o.test not in ran], [SKIPPED] * (3 - len(ran)))
        listed = [e.test for e in read_exclusions((HERE / "exclusions").read_text()) if e.suite == "ltp"]
        self.assertEqual([test for test in listed if ltp.WITH_DEVICE.fullmatch(test)], [])

    def test_ltp_scripts_that_start_what_lies_beside_them_do_find_it(self) -> None:
        with tempfile.TemporaryDirectory() as home:
            programs = Path(home, "testcases/bin")
            programs.mkdir(parents=True)
            for name, text in (("fs_racer.sh", "./beside $1 $TMPDIR"), ("beside", "echo beside $1 $2")):
                programs.joinpath(name).write_text(f"#!/bin/sh\n{text}\n")
                programs.joinpath(name).chmod(0o755)
            env = {**os.environ, "LTPROOT": home, "PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": "/pool"}
            words = ["sh", "-c", ltp.command_of("fs_racer", "fs_racer.sh 5", 10)]
            self.assertEqual(subprocess.run(words, env=env, cwd="/", capture_output=True, text=True, check=True).stdout, "beside 5 /pool\n")
        self.assertEqual(ltp.command_of("gf01", "growfiles -L 20", 10), "growfiles -L 10")


    def test_xfstests_are_judged_by_what_check_says_of_them(self) -> None:
        test, head = "generic/001", "FSTYP         -- fuse\n\n"
        passed = Ran(0, f"{head}{test}        3s\nRan: {test}\nPassed all 1 tests\n")
        skipped = Ran(0, f"{head}{test}        [not run] no device\nRan: {test}\nNot run: {test}\nPassed all 1 tests\n")
        wrong = Ran(1, f"{head}{test}        - output mismatch (see x)\n    +wrong\nRan: {test}\nFailures: {test}\nFailed 1 of 1 tests\n")
        for ran, verdict in ((passed, PASSED), (skipped, SKIPPED), (wrong, FAILED)):
            found = xfstests.read(test, ran)
            self.assertEqual((found.test, found.verdict), (test, verdict))
        self.assertIn("+wrong", xfstests.read(test, wrong).why)

    def test_an_exclusion_of_xfstests_hides_no_test_that_did_not_run(self) -> None:
        busy = Ran(1, "umount: /x/scratch: target is busy.\ncheck: failed to mkfs $SCRATCH_DEV\nInterrupted!\nPassed all 0 tests\n")
        for ran in (busy, Ran(None, ""), Ran(-9, "generic/001        "), Ran(0, "")):
            row = judged([xfstests.read("generic/001", ran)], "s | fuse | generic/001 | r", whole=False)
            self.assertEqual((row.excluded, row.failed), (0, 1), ran)
        self.assertIn("busy", xfstests.read("generic/001", busy).why)


class Doors(unittest.TestCase):
    def test_nothing_runs_below_a_door_that_is_gone(self) -> None:
        with tempfile.TemporaryDirectory() as home:
            place = Place("fuse", Path(home, "logs"), Path(home), Path(home), 1)
            place.top = Path(home, "top")
            place.top.mkdir()
            gone = place.run("x", ["touch", "made"], 60)
            self.assertEqual((gone.code, place.top.joinpath("made").exists()), (NOT_THE_POOL, False))
            place.top.joinpath(MARK).touch()
            self.assertEqual(place.run("x", ["touch", "made"], 60).code, 0)
            self.assertTrue(place.top.joinpath("made").exists())
            for outcomes in (pjdfstest.read("a/00", gone), [by_code("a", gone, 60)], [ltp.outcome("a", gone)], [stress_ng.outcome("a", gone, 60)]):
                self.assertEqual(outcomes[-1].verdict, FAILED)


class Stopping:
    """A suite whose second test gets a signal while it runs, and leaves its process number; a third must not begin."""

    name, title, doors, user = "stress-ng", "of this test", ("below", "fuse"), None
    floors = {"below": 1, "fuse": 1}

    def __init__(self, number: signal.Signals, pid: Path) -> None:
        self.test = f"echo $$ >{pid}; kill -{number.value} {os.getpid()}; exec sleep 600"

    def prepare(self, _: trees.Trees) -> None:
        pass

    def outcomes(self, place: Place, _: object) -> Iterator[Outcome]:
        yield Outcome("first", PASSED)
        yield by_code("second", place.run("second", ["sh", "-c", self.test], 600), 600)
        raise AssertionError("went on after a signal")


class Driving(unittest.TestCase):
    def test_a_run_that_is_stopped_tells_what_ran_and_leaves_nothing(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.subTest(number.name), tempfile.TemporaryDirectory() as home:
                ran = subprocess.run([sys.executable, __file__, "stopped", str(number.value), home], capture_output=True, text=True, timeout=120)
                self.assertEqual(ran.returncode, 1, ran.stderr)
                self.assertNotIn("Traceback", ran.stderr)
                found = json.loads(Path(home, "out/suites.json").read_text())
                self.assertEqual([(row["door"], row["passed"], row["failed"]) for row in found["rows"]], [("below", 1, 0)])
                self.assertEqual(found["rows"][0]["wrong"], [f"stopped by {number.name} before its end"])
                self.assertIn(f"stopped by {number.name}", found["stopped"])
                self.assertIn("WRONG: stress-ng below stopped by", ran.stdout)
                self.assertFalse(Path("/proc", Path(home, "pid").read_text().strip()).exists())
                self.assertEqual(list(Path(home, "scratch").iterdir()), [])

    def test_a_place_that_is_missing_is_named_before_anything_is_built(self) -> None:
        with tempfile.TemporaryDirectory() as home:
            words = ["--suite", "stress-ng", "--door", "below", "--home", f"{home}/home", "--scratch", f"{home}/gone"]
            ran = subprocess.run([HERE / "run", *words], capture_output=True, text=True, timeout=120)
            self.assertEqual((ran.returncode, ran.stdout), (2, ""))
            self.assertIn(f"{home}/gone", ran.stderr)
            self.assertNotIn("Traceback", ran.stderr)
            self.assertFalse(Path(home, "home").exists())


def stopped(number: int, home: Path) -> int:
    """A run of one suite that stops it."""
    # Whoever runs the tests may ignore it.
    signal.signal(number, signal.SIG_DFL)
    loader = importlib.machinery.SourceFileLoader("suites_run", str(HERE / "run"))
    driver = importlib.util.module_from_spec(importlib.util.spec_from_loader("suites_run", loader))
    loader.exec_module(driver)
    driver.SUITES = (Stopping(signal.Signals(number), home / "pid"),)
    # The name space of mounts would be made by running this file again.
    driver.among_own_mounts = lambda: None
    (home / "scratch").mkdir()
    sys.argv = ["run", "--bin", "/bin", "--door", "below", "--home", str(home), "--scratch", str(home / "scratch"), "--out", str(home / "out")]
    return driver.main()


class Fetching(unittest.TestCase):
    def test_another_archive_than_the_pinned_one_is_refused(self) -> None:
        with tempfile.TemporaryDirectory() as home:
            other = Path(home, "other")
            other.write_bytes(b"no archive")
            pin = trees.Archive("http://nowhere.invalid/x", "0" * 64, "x")
            with self.assertRaisesRegex(trees.Missing, "SHA-256"):
                trees.Trees(Path(home, "trees"), {"x": str(other)}).built("x", pin, [])

    def test_a_build_that_does_not_end_is_missing_and_ends_no_other_suite(self) -> None:
        with self.assertRaisesRegex(trees.Missing, "had not ended after"):
            trees.call(["sleep", "60"], seconds=0.1)

    def test_a_tree_that_does_not_build_is_not_taken_for_built(self) -> None:
        with tempfile.TemporaryDirectory() as home:
            repository = Path(home, "r")
            trees.call(["git", "init", "-q", str(repository)])
            git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b"]
            trees.call([*git, "commit", "-q", "--allow-empty", "-m", "x"])
            commit = (repository / ".git/refs/heads").iterdir().__next__().read_text().strip()
            all_trees = trees.Trees(Path(home, "trees"), {"x": str(repository)})
            pin = trees.Git("http://nowhere.invalid/x", commit)
            for _ in range(2):
                with self.assertRaisesRegex(trees.Missing, "ended with 3"):
                    all_trees.built("x", pin, [["sh", "-c", "exit 3"]])
            self.assertTrue(all_trees.built("x", pin, [["touch", "made"]]).joinpath("made").exists())
            with self.assertRaises(trees.Missing):
                all_trees.built("x", trees.Git("", "1" * 40), [])


if __name__ == "__main__":
    if sys.argv[1:2] == ["stopped"]:
        sys.exit(stopped(int(sys.argv[2]), Path(sys.argv[3])))
    unittest.main()
