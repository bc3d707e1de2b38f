"""HDF5's own tests: those of the library (test) and, over MPI, of its parallel part (testpar)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import trees
from doors import Failed, Place
from suite import Wanted, by_code
from verdicts import Outcome

TOP = "hdf5-1.10.8+repack1"
PIN = trees.Archive(
    "http://deb.debian.org/debian/pool/main/h/hdf5/hdf5_1.10.8%2Brepack1.orig.tar.gz",
    "7b38e58ff83b13fd8959a90b13bf896bc318ba096c940ab0847abf3ad41a0b31",
    TOP,
)
# Debian's compiler wrapper by its whole name: mpicc may be another MPI's.
BUILD = f"""set -eu
top=$PWD
mkdir serial parallel
cd "$top/serial"
"$top/{TOP}/configure" --quiet --disable-hl --disable-static CFLAGS=-O1
make --silent -j"$(nproc)" -C src
make --silent -j"$(nproc)" -C test build-tests
cd "$top/parallel"
CC=mpicc.openmpi "$top/{TOP}/configure" --quiet --disable-hl --enable-parallel --disable-static CFLAGS=-O1
make --silent -j"$(nproc)" -C src
make --silent -j"$(nproc)" -C test libh5test.la
make --silent -j"$(nproc)" -C testpar build-tests
"""
# In the directory of a test, as in the tree that was built.
TESTS = "tests"
FURNISH = 'ln -s "$1/../src" . && mkdir -m 1777 "$2" && cd "$2" && ln -s "$1"/* "$1"/.libs .'
RANKS = 3
# As HDF5's own `make check`, which knows no limit; the longest, of SWMR, takes minutes on a local disk.
TEST_SECONDS_MAX = 1200
# What reads another test's files runs behind it.
AFTER = {"flush2": "flush1", "t_prestart": "t_pshutdown"}
# Its server is no part of this build (--enable-mirror-vfd).
WITHOUT = ("test_mirror.sh",)
MPI = ["--oversubscribe", "--mca", "btl", "self,vader", "-np", str(RANKS)]


class Hdf5:
    name = "hdf5"
    title = "the library's tests, and the parallel ones over MPI"
    doors = ("below", "fuse", "preload")
    floors = dict.fromkeys(doors, 60)
    user = None

    def prepare(self, all_trees: trees.Trees) -> None:
        self.mpirun = trees.program("mpirun.openmpi", "openmpi-bin")
        trees.program("mpicc.openmpi", "libopenmpi-dev")
        self.tree = all_trees.built(self.name, PIN, [["sh", "-c", BUILD]])
        serial = (self.tree / "serial/test/Makefile").read_text()
        parallel = (self.tree / "parallel/testpar/Makefile").read_text()
        names = [name for variable in ("TEST_PROG", "TEST_SCRIPT") for name in listed(serial, variable) if name not in WITHOUT]
        self.tests = {f"test/{name}": behind(name, self.serial) for name in names}
        self.tests |= {f"testpar/{name}": behind(name, self.parallel) for name in listed(parallel, "TEST_PROG_PARA")}
        # As testpflush.sh, with our own words for MPI: the first program ends without MPI_Finalize, which mpirun calls an error.
        flush = [word for name in ("t_pflush1", "t_pflush2") for word in self.parallel(name)]
        self.tests["testpar/t_pflush"] = in_turn(";", flush)

    def serial(self, name: str) -> list[str]:
        built, source = self.tree / "serial/test" / name, self.tree / TOP / "test" / name
        if name.endswith(".sh"):
            return ["sh", str(built if built.exists() else source)]
        return [str(built)]

    def parallel(self, name: str) -> list[str]:
        return [self.mpirun, *MPI, str(self.tree / "parallel/testpar" / name)]

    def outcomes(self, place: Place, wanted: Wanted) -> Iterator[Outcome]:
        for test, words in self.tests.items():
            if not wanted(test):
                continue
            part = Path(test).parent.name
            there = place.make(f"hdf5-{test.replace('/', '-')}")
            self.furnish(place, there, "serial/test" if part == "test" else "parallel/testpar")
            env = {
                "srcdir": str(self.tree / TOP / part), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                "HDF5TestExpress": "2",
            }  # fmt: skip
            yield by_code(test, place.run(test, words, TEST_SECONDS_MAX, f"{there}/{TESTS}", env), TEST_SECONDS_MAX)
            place.remove(there)

    def furnish(self, place: Place, there: str, built: str) -> None:
        """Scripts start programs that lie beside them and read ../src, and programs look for data and plug-ins beside them."""
        words = ["sh", "-c", FURNISH, "sh", str(self.tree / built), TESTS]
        ran = place.run("furnish", words, TEST_SECONDS_MAX, there)
        if ran.code != 0:
            raise Failed(f"links to the programs cannot be made: {ran.said.strip()[-300:]}")


def behind(name: str, command: Callable[[str], list[str]]) -> list[str]:
    """The command of a test, behind that of the one whose files it reads."""
    return in_turn("&&", command(AFTER[name]) + command(name)) if name in AFTER else command(name)


def in_turn(between: str, both: list[str]) -> list[str]:
    """The first half of the words as one command, the second one as another after it."""
    half = len(both) // 2
    first, second = (" ".join(f'"${{{n}}}"' for n in numbers) for numbers in (range(1, half + 1), range(half + 1, len(both) + 1)))
    return ["sh", "-c", f"{first} {between} {second}", "sh", *both]


def listed(makefile: str, variable: str) -> list[str]:
    """What a variable of a Makefile names, also by other variables; conditions are decided in one that was configured."""
    found = definition(makefile, variable)
    if found is None:
        raise trees.Missing(f"the Makefile has no {variable}")
    names: list[str] = []
    for word in found.replace("\\\n", " ").split():
        reference = re.fullmatch(r"\$\((\w+)\)", word)
        if not reference:
            names.append(word.removesuffix("$(EXEEXT)"))
        # One that is not there is a part that this build is without.
        elif definition(makefile, reference[1]) is not None:
            names += listed(makefile, reference[1])
    return names


def definition(makefile: str, variable: str) -> str | None:
    found = re.search(rf"^{variable} *= *((?:[^\n]*\\\n)*[^\n]*)$", makefile, re.MULTILINE)
    return found[1] if found else None
