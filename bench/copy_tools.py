#!/usr/bin/env python3
"""Compares `tidepool cp`, which verifies, with tools that do not: cp, rsync, tar, rclone, xcp.

    bench/copy_tools.py --work DIR --case small --rounds 3 --tidepool target/release/tidepool

DIR says on which file system. Each round runs every tool once, in turn, to an empty target. A run's time is from its
start until the target's file system is synced; before it everything is synced and, as root, the kernel's caches are
dropped. Prints CSV; the raw runs go to bench/runs. Targets of small files are removed when all is done: ext4 looks for inodes that
were not freed in the last minutes, so whoever copies after a removal pays for it (up to five times the processor time).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

BLOCK = 1 << 20
SEED = 20_261_121
OURS = ("tidepool", "tidepool-no-verify")


def noise(size: int, rng: random.Random) -> bytes:
    return rng.randbytes(size)


def make_small(root: Path, scale: float) -> None:
    """100,000 files of 4 KiB in 100 directories."""
    rng = random.Random(SEED)
    block = noise(BLOCK, rng)
    for d in range(100):
        directory = root / f"d{d:03}"
        directory.mkdir(parents=True)
        for f in range(int(1000 * scale)):
            at = rng.randrange(BLOCK - 4096)
            (directory / f"file{f:04}").write_bytes(block[at : at + 4096])


def make_mix(root: Path, scale: float) -> None:
    """2,000 files of 0 to 8 MiB."""
    rng = random.Random(SEED)
    block = noise(8 * BLOCK, rng)
    for f in range(int(2000 * scale)):
        directory = root / f"d{f % 20:02}"
        directory.mkdir(parents=True, exist_ok=True)
        size = rng.randrange(8 * BLOCK)
        (directory / f"file{f:04}").write_bytes(block[:size])


def make_large(root: Path, scale: float) -> None:
    """One file of 4 GiB."""
    root.mkdir(parents=True)
    block = noise(64 * BLOCK, random.Random(SEED))
    with (root / "large").open("wb") as file:
        for _ in range(int(64 * scale)):
            file.write(block)


CASES = {"small": make_small, "mix": make_mix, "large": make_large}


def commands(src: Path, dst: Path, tidepool: str) -> dict[str, str]:
    """Shell lines by tool; each makes `dst` like `src`."""
    return {
        "cp -a": f"cp -a {src} {dst}",
        "rsync -a": f"rsync -a {src}/ {dst}",
        "tar|tar": f"mkdir {dst} && tar -C {src} -cf - . | tar -C {dst} -xf -",
        "rclone": f"rclone copy {src} {dst}",
        "xcp": f"xcp --no-progress -r {src} {dst}",
        "tidepool": f"{tidepool} cp {src} {dst}",
        "tidepool-no-verify": f"{tidepool} cp --no-verify {src} {dst}",
    }


def drop_caches() -> None:
    os.sync()
    if os.geteuid() == 0:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")


def sync_target(parent: Path) -> None:
    subprocess.run(["sync", "-f", str(parent)], check=True)


def count(root: Path) -> tuple[int, int]:
    files = [path.stat().st_size for path in root.rglob("*") if path.is_file()]
    return len(files), sum(files)


def one_run(line: str, dst: Path, expected: tuple[int, int]) -> dict[str, float]:
    drop_caches()
    before = os.times()
    start = time.perf_counter()
    subprocess.run(["bash", "-o", "pipefail", "-ec", line], check=True, stdout=subprocess.DEVNULL)
    exited = time.perf_counter() - start
    sync_target(dst.parent)
    seconds = time.perf_counter() - start
    after = os.times()
    found = count(dst)
    if found != expected:
        raise SystemExit(f"{line}: copied {found}, expected {expected}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"seconds": seconds, "exited": exited, "cpu": cpu}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="directory to work in; decides the file system")
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the files or bytes")
    parser.add_argument("--tidepool", default="tidepool")
    parser.add_argument("--tools", default="", help="names of tools, with commas; all that are installed without it")
    parser.add_argument("--runs", type=Path, default=Path(__file__).parent / "runs", help="where raw runs go")
    return parser.parse_args()


def installed(name: str, line: str) -> bool:
    found = name in OURS or shutil.which(line.split()[0]) is not None
    if not found:
        print(f"SKIPPED: {name} is not installed", file=sys.stderr)
    return found


def measure(args: argparse.Namespace, work: Path) -> dict[str, list[dict[str, float]]]:
    src, dst = work / "src", work / "dst"
    CASES[args.case](src, args.scale)
    expected = count(src)
    lines = commands(src, dst, args.tidepool)
    wanted = [name for name in args.tools.split(",") if name] or list(lines)
    unknown = [name for name in wanted if name not in lines]
    if unknown:
        sys.exit(f"no such tool: {', '.join(unknown)}; there are {', '.join(lines)}")
    wanted = [name for name in wanted if installed(name, lines[name])]
    results: dict[str, list[dict[str, float]]] = {name: [] for name in wanted}
    for round_number in range(args.rounds):
        for name in wanted:
            target = work / f"dst-{round_number}-{wanted.index(name)}"
            results[name].append(one_run(commands(src, target, args.tidepool)[name], target, expected))
            if args.case != "small":
                shutil.rmtree(target)
            print(f"{name:20} {results[name][-1]['seconds']:8.2f} s", file=sys.stderr)
    return results


def file_system(path: Path) -> str:
    return subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True, check=True).stdout.strip()


def show(args: argparse.Namespace, where: str, results: dict[str, list[dict[str, float]]]) -> None:
    medians = {name: statistics.median(run["seconds"] for run in runs) for name, runs in results.items()}
    others = [seconds for name, seconds in medians.items() if name not in OURS]
    fastest = min(others, default=float("nan"))
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["case", "file_system", "tool", "seconds", "min", "max", "cpu_seconds", "speed_against_fastest_other"])
    for name, runs in results.items():
        seconds = [run["seconds"] for run in runs]
        cpu = statistics.median(run["cpu"] for run in runs)
        ratio = fastest / medians[name]
        cells = [medians[name], min(seconds), max(seconds), cpu, ratio]
        out.writerow([args.case, where, name, *(f"{cell:.3f}" for cell in cells)])


def keep(args: argparse.Namespace, where: str, results: dict[str, list[dict[str, float]]]) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    record = {
        "what": "copy tools",
        "case": args.case,
        "scale": args.scale,
        "file_system": where,
        "commit": commit.stdout.strip(),
        "cores": os.cpu_count(),
        "results": results,
    }
    args.runs.mkdir(parents=True, exist_ok=True)
    path = args.runs / f"bench-copy-{int(time.time() * 1000)}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    args = arguments()
    work = args.work / f"tidepool-copy-{os.getpid()}"
    work.mkdir()
    try:
        where = file_system(work)
        results = measure(args, work)
        show(args, where, results)
        keep(args, where, results)
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
