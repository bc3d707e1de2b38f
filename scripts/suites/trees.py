"""Where suites come from: pinned source trees outside the repository, and programs of packages."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import tarfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from stopping import held

FETCH_SECONDS_MAX = 1800
# HDF5 twice, on two cores that do other things.
BUILD_SECONDS_MAX = 4 * 3600


class Missing(Exception):
    """A suite cannot be had here; the text says what is missing, and how to get it."""


@dataclass(frozen=True)
class Git:
    """One commit of a repository."""

    url: str
    commit: str

    def fetch(self, source: str, into: Path) -> None:
        call(["git", "init", "-q", str(into)])
        git = ["git", "-C", str(into)]
        # Servers give one commit; of a copy on a disk that is only so for the newest.
        one = subprocess.run([*git, "fetch", "-q", "--depth", "1", source, self.commit], **QUIET)
        if one.returncode != 0:
            call([*git, "fetch", "-q", source])
        call([*git, "checkout", "-q", self.commit])


@dataclass(frozen=True)
class Archive:
    """A tar archive; `top`: the directory in it."""

    url: str
    sha256: str
    top: str

    def fetch(self, source: str, into: Path) -> None:
        into.mkdir(parents=True)
        archive = into / "archive"
        if Path(source).is_file():
            shutil.copy(source, archive)
        else:
            with urllib.request.urlopen(source, timeout=FETCH_SECONDS_MAX) as reply, archive.open("wb") as file:
                shutil.copyfileobj(reply, file)
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != self.sha256:
            raise Missing(f"{source} has SHA-256 {found}, not {self.sha256}")
        with tarfile.open(archive) as tar:
            tar.extractall(into, filter="tar")
        archive.unlink()


QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "timeout": FETCH_SECONDS_MAX}


def call(argv: list[str], cwd: Path | None = None, seconds: float = FETCH_SECONDS_MAX) -> None:
    child = None
    try:
        with held():
            child = subprocess.Popen(
                argv, cwd=cwd, text=True, errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        said, _ = child.communicate(timeout=seconds)
    except FileNotFoundError as error:
        raise Missing(f"{argv[0]} is not installed; run scripts/install-packages suites") from error
    except BaseException as error:
        # A build that goes on would write into the next one's tree.
        if child:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise Missing(f"'{' '.join(argv)}' had not ended after {seconds:.0f} s") from error
        raise
    if child.returncode != 0:
        end = "\n  ".join(said.strip().splitlines()[-5:])
        raise Missing(f"'{' '.join(argv)}' ended with {child.returncode}:\n  {end}")


class Trees:
    """Built trees in a directory that is kept from run to run."""

    def __init__(self, home: Path, sources: dict[str, str]) -> None:
        self.home = home
        # By suite: where to fetch from in place of the upstream.
        self.sources = sources

    def built(self, name: str, pin: Git | Archive, steps: list[list[str]], below: str = ".") -> Path:
        """The tree of this pin, with these commands run in it. Half of one, of a run that was stopped, is made anew."""
        mark = hashlib.sha256(repr((pin, steps, below)).encode()).hexdigest()[:12]
        tree = self.home / f"{name}-{mark}"
        done = tree / ".built"
        if not done.exists():
            shutil.rmtree(tree, ignore_errors=True)
            source = self.sources.get(name, pin.url)
            print(f"{name}: fetching {source} and building it in {tree}", flush=True)
            try:
                pin.fetch(source, tree)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise Missing(f"{source} cannot be fetched: {error}") from error
            for step in steps:
                call(step, tree / below, BUILD_SECONDS_MAX)
            done.touch()
        return tree


def program(name: str, package: str, *folders: str) -> str:
    """Path of an installed program, also one in a directory where it is not looked for."""
    found = shutil.which(name) or next((p for f in folders if (p := shutil.which(name, path=f))), None)
    if not found:
        raise Missing(f"{name} is not installed (package {package}); run scripts/install-packages suites")
    return found
