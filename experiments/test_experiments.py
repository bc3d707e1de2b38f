"""Tests of what needs no pool: python3 -m unittest discover experiments."""

from __future__ import annotations

import csv
import importlib.util
import json
import subprocess
import tempfile
import tomllib
import types
import unittest
from pathlib import Path

import a7
import a10
import a13
import b4
import b5
import b6
import beside
import c6
import e7
import f22
import f27
import f28
import figures
import harness
import j3
import j5
import j8
import k12
import l16
import sima13
import simf22
import simpool
import stagers
import sizecache
import switches
import walltimes
from harness import Failed, Result, Row, Sample


def sample(case: str = "one shared directory", phase: str = "create", seconds: float = 2.0, **more) -> Sample:
    values = {
        "repeat": 0,
        "synced_seconds": 4.0,
        "operations": 100,
        "bytes": 8 << 20,
        "client_cpu": 0.001,
        "daemon_cpu": 0.003,
    }
    return Sample(case=case, side="pool", phase=phase, seconds=seconds, **(values | more))


class Numbers(unittest.TestCase):
    def test_standard_deviation_is_that_of_a_sample_in_percent_of_the_mean(self):
        self.assertAlmostEqual(harness.sd_percent([90.0, 100.0, 110.0]), 10.0)
        self.assertIsNone(harness.sd_percent([5.0]))

    def test_rates_and_bandwidths(self):
        self.assertEqual((sample().rate(), sample().bandwidth()), (50.0, 2.0))

    def test_a_row_has_a_kind_and_values(self):
        for kind, values in (("guessed", [1.0]), ("measured", [])):
            with self.assertRaises(ValueError):
                Row("w", "s", kind, 1, "u", values)

    def test_the_largest_deviation_is_named_and_models_do_not_count(self):
        result = Result("x")
        result.add("w", "steady", 1, "u", [1.0, 1.0])
        result.add("w", "shaky", 2, "u", [1.0, 3.0])
        result.add("w", "model", 3, "u", [1.0, 30.0], "modelled")
        self.assertIn("largest 70.7 % (shaky, w, x = 2)", result.widest())


class Simulated(unittest.TestCase):
    fio = {
        "fio version": "fio-3.33",
        "timestamp": 5,
        "global options": {"direct": "1", "filename": "/secret/data", "runtime": "800ms"},
        "disk_util": [{"name": "sda"}],
        "jobs": [
            {
                "jobname": "r0",
                "groupid": 0,
                "error": 0,
                "job options": {"rw": "randread", "bs": "4k", "numjobs": "4", "filename": "/secret/data"},
                "read": {"iops": 7.5, "bw_bytes": 30720, "total_ios": 6, "runtime": 800, "lat_ns": {}},
                "write": {"iops": 0, "bw_bytes": 0, "total_ios": 0, "runtime": 0},
            }
        ],
    }

    def test_what_is_kept_of_fio_has_no_paths(self):
        short = l16.shortened("fio: a message\n" + json.dumps(self.fio))
        self.assertNotIn("secret", json.dumps(short))
        self.assertEqual(short["jobs"][0]["read"]["iops"], 7.5)
        self.assertEqual(short["global options"], {"direct": "1", "runtime": "800ms"})

    def test_runs_that_never_came_are_left_out(self):
        ended = json.loads(json.dumps(self.fio))
        ended["jobs"][0]["read"]["total_ios"] = 0
        self.assertEqual(l16.shortened(json.dumps(ended))["jobs"], [])

    def test_all_configurations_are_run(self):
        runs = l16.configurations(False)
        self.assertEqual((len(runs), len(set(runs))), (100, 100))
        text = l16.job_file(Path("data"), runs, 800, 1 << 20)
        self.assertEqual((text.count("stonewall"), text.count("new_group"), text.count("direct=1")), (100, 100, 1))

    def test_every_file_is_opened_and_closed_once_by_a_rank_at_random(self):
        lines = [line.split() for line in simpool.opens(6, 5).splitlines()]
        self.assertEqual(len(lines), 60)
        opened = [(int(line[0]), line[3]) for line in lines if line[2] == "open"]
        self.assertEqual(len({name for _, name in opened}), 30)
        self.assertEqual(sorted(rank for rank, _ in opened), sorted(list(range(6)) * 5))
        self.assertNotEqual([rank for rank, _ in opened], sorted(rank for rank, _ in opened))

    def test_each_assumption_is_halved_and_doubled(self):
        result = Result("nodes")
        node = simpool.Node(cpu_us=10.0, cores=4)
        told = simpool.sensitivity(result, "create", node, simf22.ASSUMED, lambda n: n.cores / n.cpu_us, 8)
        self.assertEqual(len(told), 4, told)
        self.assertIn("processor time of an operation: x 2.00 when halved, x 0.50 when doubled", told)
        self.assertIn("latency: x 1.00 when halved, x 1.00 when doubled", told)
        self.assertTrue(all(row.kind == "modelled" for row in result.rows))

    def test_every_leaf_has_its_nodes_and_every_core_switch_all_leaves(self):
        switches = tomllib.loads(sima13.switches(12, sima13.LINK))["switch"]
        self.assertEqual([one["hosts"] for one in switches[:2]], ["node[001-020]", "node[021-040]"])
        self.assertEqual([one.get("switches") for one in switches[10:14]], [None, None, "leaf[1-12]", "leaf[1-12]"])
        self.assertEqual({one["gigabits-per-second"] for one in switches}, {56.0})
        self.assertEqual(len(switches), 18)


class Slowdowns(unittest.TestCase):
    # A step each second; but two of 3 s from 4 s on, while a copy goes on.
    slowed = beside.Steps([10.0, 11, 12, 13, 14, 17, 20, 21, 22])

    def test_steps_count_with_the_part_that_is_done(self):
        for at, steps in ((9, 0), (10, 0), (10.5, 0.5), (14, 4), (15.5, 4.5), (22, 8), (30, 8)):
            self.assertAlmostEqual(self.slowed.done_at(at), steps)
        self.assertEqual((self.slowed.seconds(), self.slowed.step()), (12.0, 1.5))

    def test_a_part_of_a_run_has_steps_of_its_own_length(self):
        for since, until, step in ((14, 20, 3), (14.5, 16, 3), (10, 14, 1), (0, 30, 1.5), (20, 99, 1)):
            self.assertAlmostEqual(self.slowed.step_between(since, until), step)
        self.assertIsNone(self.slowed.step_between(22, 30))
        self.assertIsNone(self.slowed.step_between(0, 10))

    def test_parts_are_compared_with_the_rest_of_their_run(self):
        self.assertAlmostEqual(self.slowed.step_outside(14, 20), 1)
        self.assertAlmostEqual(self.slowed.slowdown(14, 20), 200)
        self.assertAlmostEqual(self.slowed.slowdown(10, 14), 100 * (1 / 2 - 1))
        self.assertIsNone(self.slowed.slowdown(22, 30))
        self.assertIsNone(self.slowed.slowdown(0, 30))

    def test_slowdowns_are_told_of_the_parts_that_lie_in_the_run(self):
        told = e7.compared(self.slowed, beside.Beside(14, 17, 20), 1.0)
        self.assertEqual([round(told[what]) for what in (e7.SLOWDOWN, e7.SLOWDOWN_BESIDE)], [50, 200])
        self.assertEqual([round(told[what]) for what in (e7.WHILE_INDEXED, e7.WHILE_DATA)], [200, 200])
        self.assertEqual((told[e7.COPY], told[e7.INDEX]), (6, 3))
        late = e7.compared(self.slowed, beside.Beside(21, 23, 25), 1.0)
        self.assertNotIn(e7.WHILE_DATA, late)
        self.assertEqual(round(j8.compared(self.slowed, (14.0, 20.0), 1.0)[j8.SLOWDOWN_BESIDE]), 200)

    def test_a_machine_that_slows_down_all_the_time_is_no_slowdown(self):
        runs = []
        for number in range(2 * len(beside.in_turn(j8.CASES))):
            step = 1.0 + 0.1 * number
            run = beside.Steps([0.0, step, 2 * step, 3 * step])
            case = beside.in_turn(j8.CASES)[number % len(beside.in_turn(j8.CASES))]
            runs.append((case, run, None if case == j8.ALONE else (0.0, 3 * step)))
        half = len(runs) // 2
        told = j8.told_by([runs[:half], runs[half:]])
        self.assertEqual(len(told[j8.RUN_TIME, j8.ALONE]), 4)
        around = [sum(told[j8.SLOWDOWN, case]) / 2 for case in j8.CASES[1:]]
        self.assertAlmostEqual(sum(around) / len(around), 0)
        # What is left is the way from the middle of a round to its end, where the second of two bears half of it.
        self.assertLess(max(map(abs, around)), 100 * 0.1 * len(j8.CASES) / 2)

    def judged(self, while_copying: list[float]) -> str:
        result = Result("x")
        result.add(beside.SLOWDOWN_BESIDE, "s", 1, "%", while_copying)
        beside.judge(result, "s", 1, "")
        return result.findings[0].split(" % ")[-1]

    def test_a_bar_is_kept_or_not(self):
        self.assertEqual([self.judged([slowdown] * 2) for slowdown in (4.9, 5.0)], ["met", "NOT met"])
        self.assertEqual([self.judged([slowdown]) for slowdown in (0.0, 90.0)], ["undecided"] * 2)

    def test_runs_that_differ_by_more_than_the_bar_decide_nothing(self):
        self.assertEqual(self.judged([2.0, 2.5, 1.5]), "met")
        self.assertEqual(self.judged([2.0, -8.0, 9.0]), "undecided")
        self.assertEqual(self.judged([-90.0, 10.0, 90.0]), "undecided")
        self.assertEqual(self.judged([4.0, 6.0, 4.8]), "undecided")
        self.assertEqual(self.judged([50.0, 51.0, 49.0]), "NOT met")


class Lengths(unittest.TestCase):
    def test_runs_that_are_too_short_are_made_longer(self) -> None:
        steps = [1]

        def measured() -> int:
            if steps[0] < 8:
                raise beside.TooShort
            return steps[0]

        def longer() -> None:
            steps[0] *= 2

        self.assertEqual(beside.long_enough(measured, longer), 8)
        steps[0] = 1
        with self.assertRaisesRegex(Failed, "64 times as long"):
            beside.long_enough(measured, lambda: None)


class Curves(unittest.TestCase):
    def test_shapes_rise_and_then_fall_and_the_ssd_falls_less(self):
        self.assertEqual([k12.rate(value) for value in ("21MB", "64kB", 39_500_000)], [21_000_000, 64_000, 39_500_000])
        for pattern in k12.PATTERNS.values():
            found = {name: k12.course(k12.curve(name, pattern)) for name in k12.TIERS}
            self.assertEqual({peak for peak, _ in found.values()}, {16})
            self.assertLess(found["ssd"][1], found["hdd"][1])
            self.assertEqual(tuple(k12.curve("hdd", pattern)), k12.COUNTS)


class Cores(unittest.TestCase):
    def test_lists_are_read_as_the_kernel_writes_them(self):
        self.assertEqual(f27.as_list("0,1,2,5,7,8"), "0-2,5,7-8")

    def test_one_core_cannot_be_split(self):
        self.assertIsNone(harness.split_cores([0]))


class Model(unittest.TestCase):
    def test_it_is_labelled_and_is_what_it_says(self):
        result = Result("x")
        f22.model(None, result, [sample(phase=phase) for phase in f22.PHASES])
        cores = harness.machine()["cores"]
        row = next(r for r in result.rows if r.series == f22.SERIES_MODELLED and r.x == 512)
        # 4 ms for 100 operations.
        self.assertEqual((row.kind, row.what), ("modelled", "create"))
        self.assertAlmostEqual(row.values[0], 512 * cores / 40e-6)
        self.assertTrue(result.model)
        self.assertEqual({r.kind for r in result.rows}, {"modelled", "published"})


class Dips(unittest.TestCase):
    def test_only_a_fall_beyond_the_noise_is_one(self):
        result = Result("x")
        for x, values in ((1, [100.0, 102.0]), (2, [99.0, 95.0]), (4, [50.0, 52.0])):
            result.add("w", "pool, read", x, "MiB/s", values)
        f28.dips(result, "w", "read", [1, 2, 4])
        self.assertEqual(len(result.findings), 1)
        self.assertIn("from 2 to 4 processes", result.findings[0])


class SizeCache(unittest.TestCase):
    def setting(self, help_text: str, value: str | None = None):
        args = types.SimpleNamespace(size_cache=value)
        return types.SimpleNamespace(help=lambda *_: help_text, args=args)

    def test_a_build_without_it_says_so(self):
        result = Result("x")
        self.assertEqual(sizecache.variants(self.setting("  --store <DIR>"), result), {sizecache.WITHOUT: []})
        self.assertIn("has no --size-cache", result.findings[0])

    def test_with_and_without_a_value(self):
        for text, value, wanted in (
            ("      --size-cache\n", None, ["--size-cache"]),
            ("      --size-cache <N>\n", None, ["--size-cache", "64"]),
            ("      --size-cache <WINDOW>\n", "9", ["--size-cache", "9"]),
        ):
            found = sizecache.variants(self.setting(text, value), Result("x"))
            self.assertEqual(found[sizecache.WITH], wanted)
        with self.assertRaises(Failed):
            sizecache.variants(self.setting("      --size-cache <WINDOW>\n"), Result("x"))


class Stagers(unittest.TestCase):
    def test_rates_are_told_beside_null_requests_and_norns(self):
        result = Result("x")
        rates = {j3.OURS: 100.0, j3.OUR_C: 60.0, j3.PEER: 20.0}
        for series, rate in rates.items():
            for n in (1, 4):
                for work in j3.WORKS:
                    factor = 2 if work == "ping" else 1
                    result.add(f"{j3.NAMES[work]}: rate", series, n, "requests/s", [factor * rate])
                    result.add(f"{j3.NAMES[work]}: latency", series, n, "us, p50", [1e6 / rate])
        j3.conclude(result, list(rates), [1, 4])
        told = "\n".join(result.findings)
        self.assertIn("tidepool, Rust, 4 processes: 100 submissions/s, 0.50 of the null", told)
        self.assertIn("submit: tidepool, libnorns / NORNS, libnorns, by processes: 3.0, 3.0", told)

    def test_bandwidth_is_told_beside_the_links_own(self):
        result = Result("x")
        for what in j5.WORKS:
            for n in (1, 2):
                for in_flight in stagers.IN_FLIGHT:
                    result.add(what, f"tidepool, {in_flight} in flight", n, "MiB/s", [90.0 * in_flight])
                result.add(what, j5.LINK, n, "MiB/s", [100.0])
        j5.conclude(result, [1, 2], True)
        self.assertIn("by clients (1, 2): 90, 90 MiB/s; of iperf3: 0.90, 0.90", result.findings[0])

    def test_a_client_that_does_not_start_is_an_error(self):
        child = subprocess.Popen(["true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with child, self.assertRaisesRegex(Failed, "did not start"):
            stagers.begin_together([child])


class WallTimes(unittest.TestCase):
    """Run times predicted; that `python -m tidepool.jobs.evaluate` is understood is tested with the Python package."""

    MINUTES = {"default": [1, 2, 9], "automl-history": [5, 10, 20], "linear-batch": [9, 20, 30], "request": [50, 60, 70]}

    def setting(self, work: Path, **more):
        self.commands: list[list[str]] = []

        def capture(words: list[str]) -> str:
            names = [words[at + 1] for at, word in enumerate(words) if word == "--predictor"]
            return json.dumps({"logs": [{"predictors": [self.row(name) for name in names]}]})

        args = types.SimpleNamespace(**({"log": None, "python": None} | more))
        return types.SimpleNamespace(
            args=args, quick=True, work=work, steps=set(), note=self.commands.append, capture=capture
        )

    def row(self, name: str) -> dict:
        seconds = [60.0 * minutes for minutes in self.MINUTES[name]]
        at = {f"medae_p{share}_user_seconds": seconds[1] for share in (50, 60, 80)}
        users = [{"r2_taught": 0.9, "r2_judged": r2} for r2 in (0.8, 0.1, -7.0, None)]
        return {"predictor": name, "medae_of_users_seconds": seconds, "users": users, **at}

    def measured(self, experiment) -> Result:
        with tempfile.TemporaryDirectory() as work:
            return experiment.measure(self.setting(Path(work)))

    def test_b4_counts_models_that_hold(self):
        result = self.measured(b4)
        self.assertIn("temporal split, automl-history: of 3 users with a model 1 have an R2 above 0.5 on both, 2", result.findings[0])
        self.assertEqual([row.values for row in result.rows[:3]], [[0.8], [0.1], [-7.0]])

    def test_b5_tells_order_and_factor(self):
        told = "\n".join(self.measured(b5).findings)
        self.assertIn("default 2, automl-history 10, linear-batch 20, request 60 (published", told)
        self.assertEqual(told.count("as published"), 2)
        self.assertIn("6.0 times as far off as automl-history, at least 5", told)
        self.MINUTES = self.MINUTES | {"linear-batch": [9, 70, 80], "request": [9, 40, 80]}
        told = "\n".join(self.measured(b5).findings)
        self.assertEqual(told.count("not the published order"), 2)
        self.assertIn("4.0 times as far off as automl-history, less than 5", told)

    def test_b6_tells_hours_of_both_splits_and_which_leaks(self):
        result = self.measured(b6)
        self.assertIn("made up, temporal split, default: 0.03 / 0.03 / 0.03 hours", result.findings[0])
        leaking = [finding for finding in result.findings if "random split: leaks the future" in finding]
        # What learns job by job knows no random split.
        self.assertEqual(len(leaking), 2)
        self.assertEqual({row.kind for row in result.rows}, {"measured", "published"})

    def test_commands_tell_no_paths_and_logs_are_wanted(self):
        with tempfile.TemporaryDirectory() as work:
            walltimes.judged(self.setting(Path(work), python="/opt/bin/python3"), ("request",))
            self.assertEqual(self.commands[0][:4], ["python", "-m", "tidepool.jobs.evaluate", "made up.swf"])
            full = self.setting(Path(work))
            full.quick = False
            with self.assertRaisesRegex(Failed, "--log"):
                walltimes.judged(full, ("request",))


def drawn(experiment, result: Result) -> bytes:
    """The plot of what a result's CSV holds."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        with (out / "x.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, harness.COLUMNS)
            writer.writeheader()
            writer.writerows(row.summary() for row in result.rows)
        told = {"experiment": "x", "title": "t", "quick": True, "commit": None, "client": "preload", "caches": "warm"}
        (out / "x.json").write_text(json.dumps(told | {"x_label": result.x_label, "machine": harness.machine()}))
        figures.write(out / "x.png", experiment, *harness.load(out, "x"))
        return (out / "x.png").read_bytes()


class Changes(unittest.TestCase):
    def test_a_log_gets_queues_and_groups_by_what_jobs_ask_for(self):
        with tempfile.TemporaryDirectory() as where:
            path = Path(where) / "log-1.swf"
            jobs = [(2, 900), (2, 7200), (16, 7200), (20, 900)]
            text = "; MaxNodes: 10\n; MaxProcs: 20\n"
            for number, (processors, request) in enumerate(jobs):
                text += f"{number} {number} -1 60 {processors} -1 -1 -1 {request} -1 1 -1 -1 -1 -1 -1 -1 -1\n"
            path.write_text(text)
            log = c6.Log.read(path)
            self.assertEqual((log.name, log.nodes, log.per_node), ("log", 10, 2))
            out = Path(where) / "out.swf"
            log.write(out, 1)
            found = [line.split()[14:16] for line in out.read_text().splitlines() if line[0] != ";"]
        queues = [int(queue) for queue, _ in found]
        self.assertEqual(queues, [c6.SHORT, c6.LONG, c6.LONG_AND_TOO_WIDE, c6.SHORT])
        wide = [int(group) in (c6.WIDE_JOB, c6.WIDE_AND_CHOSEN) for _, group in found]
        self.assertEqual(wide, [False, False, True, True])

    def test_a_log_without_its_machine_is_refused(self):
        with tempfile.TemporaryDirectory() as where:
            path = Path(where) / "log.swf"
            path.write_text("1 2 3\n")
            with self.assertRaises(Failed):
                c6.Log.read(path)
            path.write_text(" ".join(["1"] * 18) + "\n")
            with self.assertRaises(Failed):
                c6.Log.read(path)

    def test_machines_are_files_that_can_be_read(self):
        for change in c6.CHANGES:
            machine = tomllib.loads(change.text(100, 0.3))
            self.assertEqual(bool(machine), change.name != "nothing")
            for window in machine.get("block", []):
                self.assertLess(window["from-seconds"], window["every-seconds"])


@unittest.skipUnless(importlib.util.find_spec("matplotlib"), "no matplotlib here")
class Redrawn(unittest.TestCase):
    def assert_drawn(self, experiment, result: Result):
        self.assertTrue(drawn(experiment, result).startswith(b"\x89PNG"))

    def test_b4_to_b6(self):
        for experiment in (b4, b5, b6):
            self.assert_drawn(experiment, WallTimes().measured(experiment))

    def test_a7_with_all_kinds(self):
        result = Result("nodes")
        for series, x, kind in ((a7.HERE, 1, "measured"), (a7.LINE, 512, "modelled"), ("BeeOND", 8, "published")):
            for what in (a7.START, a7.STOP):
                result.add(what, series, x, "s", [0.1 * x], kind)
        self.assert_drawn(a7, result)

    def test_a10_with_and_without_devices_of_the_nodes_own(self):
        for hows in ((a10.SHARED,), (a10.OWN, a10.SHARED)):
            result = Result("nodes")
            for how in hows:
                a10.add(result, how, {(phase, a10.HASHED, n): [n * 9.0, n * 11.0] for phase in a10.PHASES for n in (1, 2)})
            a10.extrapolate(with_devices(), result, [1, 2], {"write": 25.0, "read": 43.75})
            self.assert_drawn(a10, result)

    def test_a13_without_what_was_measured(self):
        self.assert_drawn(a13, modelled_island())


def with_devices():
    return types.SimpleNamespace(args=types.SimpleNamespace(device_read=3500.0, device_write=2000.0))


def modelled_island() -> Result:
    result = Result("core switches")
    for called in a13.ISLAND_DEVICES:
        for series in a13.PLACEMENTS:
            for cores in a13.CORES:
                rate = 100.0 if series == a13.POOLS else 20.0 * min(cores, 5)
                result.add(a13.ISLAND_CALLED.format(called), f"{series}, flows", cores, "GB/s", [rate], "modelled")
    return result


class Nodes(unittest.TestCase):
    def test_growth_in_proportion_has_power_one(self):
        self.assertAlmostEqual(a7.power({n: 3.0 * n for n in (8, 16, 32)}), 1.0)
        self.assertAlmostEqual(a7.power({n: 2.0 for n in (8, 16, 32)}), 0.0)

    def test_nvme_is_nodes_times_the_device_and_what_was_reached(self):
        result = Result("nodes")
        a10.add(result, a10.OWN, {(phase, a10.IN_TURN, 2): [40.0] for phase in a10.PHASES})
        a10.extrapolate(with_devices(), result, [1, 2], {"write": 25.0, "read": 40.0})
        write, read = (a10.NVME.format(phase) for phase in a10.PHASES)
        self.assertAlmostEqual(result.mean(write, a10.SUM, 512), 1024.0)
        self.assertAlmostEqual(result.mean(read, a10.SUM, 512), 1792.0)
        self.assertAlmostEqual(result.mean(write, a10.REACHED, 512), 0.8 * 1024)
        far = [r for r in result.rows if r.what in (write, read) and r.kind != "published"]
        self.assertEqual({r.kind for r in far}, {"modelled"})

    def test_a_nodes_share_is_told_with_the_bar(self):
        for rate, words in ((18.0, "differs by 10 % from that of one alone: within 15 %"), (16.0, "NOT within 15 %")):
            result = Result("nodes")
            rates = {(phase, a10.HASHED, n): [n * (20.0 if n == 1 else rate)] for phase in a10.PHASES for n in (1, 2)}
            a10.add(result, a10.OWN, rates)
            a10.told(result, a10.OWN, a10.HASHED, [1, 2], {"write": 20.0, "read": 20.0})
            self.assertIn(words, result.findings[0])

    def test_pools_have_a_bar_and_missing_measurements_are_said(self):
        result = modelled_island()
        a13.conclude(result, False)
        text = "\n".join(result.findings)
        self.assertIn("nothing was measured", text)
        self.assertIn("without pools, flows (modelled): 100 GB/s with 6 core switches, of that 0.60 with 3, 0.20 with 1", text)
        self.assertIn("of that 1.00 with 3, 1.00 with 1; within 5 %", text)
        self.assertIn("gives no numbers", text)

    def test_the_island_is_the_topology_that_the_small_fabric_has_as_well(self):
        text = a13.ISLAND.read_text()
        self.assertTrue(text.endswith("\n" + switches.topology(12, 20, 6, 56, 56)))
        self.assertEqual(a13.off(6), "")
        self.assertEqual(a13.off(1), "core[2-6]")


class Files(unittest.TestCase):
    def test_plots_get_back_what_was_measured(self):
        rows = [Row("w", "a, b", "measured", 2, "u", [1.0, 3.0]), Row("w", "c", "modelled", 4, "u", [5.0])]
        with tempfile.TemporaryDirectory() as name:
            with (Path(name) / "f22.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, harness.COLUMNS)
                writer.writeheader()
                writer.writerows(row.summary() for row in rows)
            (Path(name) / "f22.json").write_text(json.dumps({"title": "t"}))
            report, found = harness.load(Path(name), "f22")
        self.assertEqual(report, {"title": "t"})
        self.assertEqual(
            [(r["series"], r["x"], r["mean"], r["min"]) for r in found], [("a, b", 2, 2, 1), ("c", 4, 5, 5)]
        )
        self.assertIsNone(found[1]["sd_percent"])

    def test_nothing_measured_is_an_error_that_says_so(self):
        with tempfile.TemporaryDirectory() as name, self.assertRaisesRegex(Failed, "nothing has been measured"):
            harness.load(Path(name), "f22")


if __name__ == "__main__":
    unittest.main()
