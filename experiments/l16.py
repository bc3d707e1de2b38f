"""L16 (HPIS3, Figure 5): the simulator, calibrated on half of fio's runs on this machine's disk, beside the other half."""

from __future__ import annotations

import json
import random
import shutil
import statistics
import sys
import tempfile
from itertools import product
from pathlib import Path

import figures
from harness import Failed, Result, Setting

TITLE = "real disk and simulator, calibrated on half of the runs (HPIS3, Figure 5)"
PATTERNS = {"read": "sequential reads", "randread": "random reads", "write": "sequential writes", "randwrite": "random writes"}
SIZES, QUICK_SIZES = ("4k", "16k", "64k", "256k", "1m"), ("4k", "32k", "256k", "1m")
CLIENTS, QUICK_CLIENTS = (1, 2, 4, 8, 16), (1, 8)
MILLISECONDS, QUICK_MILLISECONDS = 800, 60
# Runs of one call of fio: a call takes less than a minute.
RUNS_AT_ONCE = 50
# Of each client in the file.
REGION, QUICK_REGION = 64 << 20, 4 << 20
TRIALS, QUICK_TRIALS = 10, 2
# The paper: absolute average and lowest error of random writes, in percent.
PUBLISHED = {"mean": 11.98, "lowest": 2.0}
BAR = 8.0
# Of what fio writes, what is kept: nothing of this machine's names and paths.
GLOBAL_KEPT = ("direct", "ioengine", "runtime", "size", "offset_increment", "randrepeat", "fallocate")
SIDE_KEPT = ("iops", "bw_bytes", "total_ios", "runtime")


def configurations(quick: bool) -> list[tuple[str, str, int]]:
    patterns = ("randwrite",) if quick else tuple(PATTERNS)
    return list(product(patterns, QUICK_SIZES if quick else SIZES, QUICK_CLIENTS if quick else CLIENTS))


def job_file(path: Path, runs: list[tuple[str, str, int]], milliseconds: int, region: int) -> str:
    """All runs, one after the other. Each client has a part of the file."""
    text = f"[global]\nfilename={path}\ndirect=1\nioengine=psync\nthread\ngroup_reporting\ntime_based\nruntime={milliseconds}ms\n"
    text += f"size={region}\noffset_increment={region}\nrandrepeat=0\nnorandommap\nfallocate=none\n"
    for number, (pattern, size, clients) in enumerate(runs):
        text += f"[r{number}]\nstonewall\nnew_group\nrw={pattern}\nbs={size}\nnumjobs={clients}\n"
    return text


def shortened(text: str) -> dict:
    """What is needed of fio's JSON, without names and paths of this machine."""
    whole = json.loads(text[text.index("{") :])
    jobs = []
    for job in whole["jobs"]:
        # fio was ended before its turn came.
        if not job["read"]["total_ios"] + job["write"]["total_ios"]:
            continue
        short = {key: job[key] for key in ("jobname", "groupid", "error")}
        short["job options"] = {key: job["job options"][key] for key in ("rw", "bs", "numjobs")}
        short |= {side: {key: job[side][key] for key in SIDE_KEPT} for side in ("read", "write")}
        jobs.append(short)
    options = whole["global options"]
    return {
        "fio version": whole["fio version"],
        "timestamp": whole["timestamp"],
        "global options": {key: options[key] for key in GLOBAL_KEPT if key in options},
        "jobs": jobs,
    }


def fio(setting: Setting) -> list[Path]:
    """All runs, `repeats` times in random order, so that drift meets calibration and the other half alike."""
    if not shutil.which("fio"):
        raise Failed("there is no fio; install Debian's package fio, or give its files by --measurements")
    every = configurations(setting.quick)
    most = max(clients for _, _, clients in every)
    region = QUICK_REGION if setting.quick else REGION
    setting.need_space(setting.disk, most * region)
    order: list[tuple[str, str, int]] = []
    shuffler = random.Random(16)
    for _ in range(setting.repeats):
        order += shuffler.sample(every, len(every))
    files = []
    milliseconds = QUICK_MILLISECONDS if setting.quick else MILLISECONDS
    with tempfile.TemporaryDirectory(prefix="tidepool-l16-", dir=setting.disk.path) as where:
        data = Path(where) / "data"
        lay = ["fio", "--name=lay", f"--filename={data}", "--rw=write", "--bs=1m", f"--size={most * region}", "--direct=1"]
        setting.capture([*lay, "--ioengine=psync", "--output-format=json", f"--output={where}/lay.json"])
        for first in range(0, len(order), RUNS_AT_ONCE):
            jobs, found = setting.work / "runs.fio", setting.work / f"fio-{first // RUNS_AT_ONCE}.json"
            jobs.write_text(job_file(data, order[first : first + RUNS_AT_ONCE], milliseconds, region))
            # What the host keeps of the file is the same each time.
            setting.capture(["dd", f"if={data}", "of=/dev/null", "bs=1M", "iflag=direct", "status=none"])
            command = ["fio", "--output-format=json", str(jobs)]
            setting.note(command)
            last = min(first + RUNS_AT_ONCE, len(order))
            print(f"  fio: runs {first + 1} to {last} of {len(order)}", file=sys.stderr)
            found.write_text(json.dumps(shortened(setting.capture(command)), separators=(",", ":")))
            files.append(found)
    return files


def measure(setting: Setting) -> Result:
    setting.fewer_repeats(2)
    result = Result("bytes of a request")
    stored = setting.args.measurements
    files = stored or fio(setting)
    if stored:
        setting.steps.add("nothing was measured: stored measurements " + ", ".join(path.name for path in stored))
    model = setting.work / "storage.toml"
    common = ["--measurements", *map(str, files), "--seed", "1", "--json"]
    trials = str(QUICK_TRIALS if setting.quick else TRIALS)
    calibrate = [str(setting.command), "sim", "calibrate", "storage", *common, "--out", str(model), "--trials", trials]
    calibrate += ["--repeats", "10" if setting.quick else "100"]
    validate = [str(setting.command), "sim", "validate", "storage", "--model", str(model), *common]
    # Files by their names only: where they lie is this machine's.
    names = {str(path): path.name for path in files}
    for command in (calibrate, validate):
        setting.note([names.get(part, part) for part in command])
    fitted = json.loads(setting.capture(calibrate))
    # Commands are noted above, without paths.
    fitted = {key: value for key, value in fitted.items() if key not in ("out", "command")}
    judged = json.loads(setting.capture(validate))
    result.model = "a device with three stages, fitted to half of the configurations; all simulated points are of the other half"
    result.details.update(fitted=fitted, judged=judged["result"], storage=model.read_text())
    if not stored:
        result.details["fio"] = [json.loads(path.read_text()) for path in files]
    add(result, judged)
    conclude(result, fitted, judged)
    return result


def panel(run: dict) -> str:
    return f"{'random' if run['random'] else 'sequential'} {'writes' if run['write'] else 'reads'}"


def add(result: Result, judged: dict) -> None:
    groups: dict[tuple[str, int, int], list[dict]] = {}
    for run in judged["runs"]:
        groups.setdefault((panel(run), run["clients"], run["bytes"]), []).append(run)
    for (what, clients, size), runs in sorted(groups.items()):
        megabytes = size / 1e6
        result.add(what, f"{clients} clients", size, "MB/s", [run["measured"] * megabytes for run in runs])
        result.add(what, f"{clients} clients, simulated", size, "MB/s", [runs[0]["simulated"] * megabytes], "modelled")


def conclude(result: Result, fitted: dict, judged: dict) -> None:
    trials = [trial["result"] for trial in fitted["trials"]]
    means = [100 * trial["mean_error"] for trial in trials]
    single = [100 * trial["mean_error_of_single_runs"] for trial in trials]
    within = [100 * trial["within"] for trial in trials]
    noise = fitted["noise"]
    mean = statistics.fmean(means)
    what = "error of held-out runs"
    result.add(what, "medians of repeats, by halves", 1, "%", means, "modelled")
    result.add(what, "single runs, by halves", 1, "%", single, "modelled")
    result.add(what, "HPIS3, Figure 5, mean", 1, "%", [PUBLISHED["mean"]], "published")
    if noise is not None:
        result.add(what, "noise: a run from its repeats", 1, "%", [100 * noise])
    verdict = "reached" if mean <= BAR else "NOT reached"
    result.findings.append(
        f"mean error of held-out configurations {mean:.1f} % ({min(means):.1f} to {max(means):.1f} over {len(means)} random halves); "
        f"{BAR:g} % is {verdict}; the paper: {PUBLISHED['mean']} %, the lowest {PUBLISHED['lowest']:g} %"
    )
    floor = "nothing was repeated" if noise is None else f"a run is {100 * noise:.1f} % from the median of its repeats"
    result.findings.append(f"single held-out runs: mean error {statistics.fmean(single):.1f} %; the noise that no model can foresee: {floor}")
    result.findings.append(
        f"confidence: {statistics.fmean(within):.0f} % of held-out runs were within their 90 % interval (a factor of "
        f"{2.718281828 ** (fitted['error_90'] or 0):.2f} either way for seed 1)"
    )
    eight = [run for run in judged["runs"] if run["write"] and run["random"] and run["clients"] == 8]
    if eight:
        errors = [100 * abs(run["error"]) for run in eight]
        result.findings.append(
            f"random writes of 8 clients, as in Figure 5: errors {min(errors):.1f} to {max(errors):.1f} %, mean {statistics.fmean(errors):.1f} %"
        )
    result.findings += [f"note of the fit: {note}" for note in fitted["notes"]]


def draw(report: dict, rows: list[dict]):
    whats = [what for what in dict.fromkeys(row["what"] for row in rows) if what != "error of held-out runs"]
    figure, axes = figures.panels(len(whats), columns=2, width=5.4, height=3.8)
    for one, what in zip(axes, whats):
        figures.lines(one, rows, what, report["x_label"], log_x=True, log_y=True)
        ticks = sorted({row["x"] for row in rows if row["what"] == what})
        one.set_xticks(ticks, [figures.size_name(tick) for tick in ticks])
    figures.legend_below(figure, axes, columns=3)
    return figure
