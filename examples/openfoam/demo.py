#!/usr/bin/env python3
"""The demonstration: a real OpenFOAM case with all its files on a pool of four daemons.

    python3 examples/openfoam/demo.py [--daemons 4] [--cells 60] [--client auto] [--keep-work DIR]

It writes a case, runs it once on the local disk and once through `tidepool run` (stage-in,
blockMesh, decomposePar, icoFoam on two ranks, reconstructPar, stage-out), compares every
result file, and prints phases with seconds, bytes and rates. Where OpenFOAM cannot be
installed it says so and runs the same flow with a Python program that uses HDF5.

Exit codes: 0 results equal, 1 they differ or a step failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from case import write_case  # noqa: E402  (the folder is no package)

# Debian's package leaves finding its settings to the user's shell profile.
OPENFOAM_HOME = Path("/usr/share/openfoam")
TOOLS = ("blockMesh", "decomposePar", "icoFoam", "reconstructPar", "mpirun")
RANKS = 2


def main() -> int:
    args = parse_args()
    # Where cargo puts what it builds; a path that is not absolute counts from the repository.
    built = HERE.parent.parent / os.environ.get("CARGO_TARGET_DIR", "target")
    command = built / args.profile / "tidepool"
    if not command.is_file():
        print(f"{command} is missing; run 'make release' first", file=sys.stderr)
        return 1
    work = Path(args.keep_work) if args.keep_work else Path(tempfile.mkdtemp(prefix="tidepool-demo-"))
    work.mkdir(parents=True, exist_ok=True)
    try:
        return demonstrate(args, command, work)
    finally:
        if not args.keep_work:
            shutil.rmtree(work)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--daemons", type=int, default=4, help="daemons of the pool (default 4)")
    parser.add_argument("--cells", type=int, default=60, help="cells per edge (default 60)")
    parser.add_argument("--steps", type=int, default=60, help="time steps (default 60)")
    parser.add_argument("--writes", type=int, default=20, help="written time steps (default 20)")
    parser.add_argument("--client", default="auto", choices=["auto", "fuse", "preload"])
    parser.add_argument("--profile", default="release", help="build to use: release or debug")
    parser.add_argument("--hdf5", action="store_true", help="run the HDF5 program even if OpenFOAM is there")
    parser.add_argument("--keep-work", metavar="DIR", help="work in DIR and leave it")
    return parser.parse_args()


def demonstrate(args: argparse.Namespace, command: Path, work: Path) -> int:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing or args.hdf5:
        if missing:
            print(f"OpenFOAM or Open MPI is not complete here (missing: {', '.join(missing)}).")
            print("Running the same flow with a Python program that uses HDF5 instead.\n")
        steps, compare = hdf5_job(work)
    else:
        steps, compare = openfoam_job(args, work)

    local = work / "local"
    shutil.copytree(work / "input", local)
    print("== on the local disk")
    local_seconds = run_steps(steps, local)
    if local_seconds is None:
        return 1

    print(f"\n== on a pool of {args.daemons} daemons")
    result = work / "result"
    script = work / "steps.json"
    script.write_text(json.dumps(steps))
    report = run_on_pool(args, command, work, script, result)
    if report is None:
        return 1

    print("\n== phases on the pool")
    print_phases(report)
    print(f"program on the local disk: {local_seconds:.2f} s")
    return compare_trees(local, result, compare)


def openfoam_job(args: argparse.Namespace, work: Path) -> tuple[list[list[str]], list[str]]:
    """The steps of the case, and the folders whose files must be equal."""
    write_case(work / "input", cells=args.cells, steps=args.steps, writes=args.writes, ranks=RANKS)
    if OPENFOAM_HOME.is_dir():
        os.environ.setdefault("WM_PROJECT_DIR", str(OPENFOAM_HOME))
    mpirun = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(RANKS)]
    if os.geteuid() == 0:
        mpirun.append("--allow-run-as-root")
    steps = [["blockMesh"], ["decomposePar"], [*mpirun, "icoFoam", "-parallel"], ["reconstructPar"]]
    return steps, ["[0-9]*", "constant", "system", "processor*"]


def hdf5_job(work: Path) -> tuple[list[list[str]], list[str]]:
    (work / "input").mkdir()
    shutil.copy(HERE / "hdf5_job.py", work / "input" / "job.py")
    return [[python_with_h5py(), "job.py"]], ["*"]


def python_with_h5py() -> str:
    """A Python that can import h5py: this one, or the system's, which Debian's package serves."""
    for python in (sys.executable, "/usr/bin/python3"):
        probe = subprocess.run([python, "-c", "import h5py"], capture_output=True, check=False)
        if probe.returncode == 0:
            return python
    sys.exit("no Python here has h5py; install python3-h5py")


def run_steps(steps: list[list[str]], folder: Path) -> float | None:
    """Runs the steps one after the other, each with its log; the seconds, or None on failure."""
    began = time.monotonic()
    for step in steps:
        name = next(word for word in reversed(step) if not word.startswith("-")).replace("/", "_")
        at = time.monotonic()
        log = folder / f"log.{name}"
        with log.open("wb") as out:
            code = subprocess.run(step, cwd=folder, stdout=out, stderr=subprocess.STDOUT, check=False).returncode
        print(f"{name:<16} {time.monotonic() - at:7.2f} s", flush=True)
        if code != 0:
            print(f"{' '.join(step)} ended with {code}; the end of its log:", file=sys.stderr)
            print("\n".join(log.read_text(errors="replace").splitlines()[-15:]), file=sys.stderr)
            return None
    return time.monotonic() - began


def run_on_pool(
    args: argparse.Namespace, command: Path, work: Path, script: Path, result: Path
) -> dict | None:
    call = [
        str(command), "run", "--local", "--nodes", str(args.daemons), "--client", args.client,
        "--store", str(work), "--json",
        # All programs use one mount here, so the kernel may remember names and attributes.
        "--cache-ttl", "1000",
        "--in", f"{work / 'input'}:/case", "--out", f"/case:{result}",
        "--", sys.executable, str(HERE / "steps.py"), str(script), "case",
    ]  # fmt: skip
    done = subprocess.run(call, stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.splitlines()
    print("\n".join(lines[:-1]))
    if done.returncode != 0 or not lines:
        print(f"tidepool run ended with {done.returncode}", file=sys.stderr)
        return None
    return json.loads(lines[-1])


def print_phases(report: dict) -> None:
    print(f"{'phase':<10} {'seconds':>8} {'files':>7} {'MiB':>9} {'MiB/s':>8}")
    for phase in report["phases"]:
        seconds, files, size = phase["seconds"], phase.get("files"), phase.get("bytes")
        if size is None:
            print(f"{phase['phase']:<10} {seconds:8.2f}")
            continue
        mib = size / 2**20
        print(f"{phase['phase']:<10} {seconds:8.2f} {files:7d} {mib:9.2f} {mib / max(seconds, 1e-9):8.1f}")


def compare_trees(local: Path, result: Path, patterns: list[str]) -> int:
    """Compares all files of the local run with those staged out, byte by byte."""
    names = sorted(
        path.relative_to(local)
        for pattern in patterns
        for top in local.glob(pattern)
        for path in ([top] if top.is_file() else top.rglob("*"))
        if path.is_file() and not path.name.startswith("log.")
    )
    wrong = [name for name in names if not same(local / name, result / name)]
    size = sum((local / name).stat().st_size for name in names)
    if wrong or not names:
        print(f"\n{len(wrong)} of {len(names)} files differ, for example {wrong[:3]}", file=sys.stderr)
        return 1
    print(f"\nall {len(names)} result files ({size / 2**20:.1f} MiB) equal those of the local run")
    return 0


def same(one: Path, other: Path) -> bool:
    return other.is_file() and one.read_bytes() == other.read_bytes()


if __name__ == "__main__":
    sys.exit(main())
