"""pjdfstest in C and shell, as its authors run it: what POSIX says of each call, as root and as other users."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import trees
from doors import Place, Ran
from suite import Wanted, last_line
from verdicts import Outcome, Verdict

PIN = trees.Git("https://github.com/pjd/pjdfstest.git", "85a8aea9e685999ef0540392fd80535f873d7ff7")
# A pool is its user's: through preload, who becomes another one goes on with the connections that he has, and gets no new ones. So
# the program has them made to all daemons, by asking for the space, before it changes its ids.
TOUCHES = r"""set -eu
sed -i -e 's/^#include <unistd.h>/#include <sys\/statvfs.h>\n&/' \
  -e 's/^\tif (gids != NULL) {/\tstruct statvfs touched;\n\tif (statvfs(".", \&touched) < 0) { perror("statvfs"); exit(1); }\n&/' pjdfstest.c
test "$(grep -c statvfs pjdfstest.c)" = 3
"""
STEPS = [
    ["sh", "-c", TOUCHES], ["autoreconf", "-ifs"], ["./configure", "--quiet"], ["make", "--silent", "pjdfstest"],
]  # fmt: skip
# The longest sleep between changes whose times must differ; debug builds on machines that do other things.
FILE_SECONDS_MAX = 600
# `ok 1`, `not ok 3 - tried '...', expected 0, got EPERM`, the former two with `# TODO ...` where the authors expect a failure.
LINE = re.compile(r"^(ok|not ok) (\d+)\b *(?:- *)?(.*)$", re.MULTILINE)
PLAN = re.compile(r"^1\.\.(\d+)", re.MULTILINE)


class Pjdfstest:
    name = "pjdfstest"
    title = "what POSIX says of each call, in C and shell, as root"
    doors = ("below", "fuse", "preload")
    floors = dict.fromkeys(doors, 7500)
    user = None

    def prepare(self, all_trees: trees.Trees) -> None:
        if os.geteuid() != 0:
            raise trees.Missing("it becomes other users, which takes root")
        trees.program("openssl", "openssl")
        self.tests = all_trees.built(self.name, PIN, STEPS) / "tests"

    def outcomes(self, place: Place, wanted: Wanted) -> Iterator[Outcome]:
        for file in sorted(self.tests.glob("*/*.t")):
            name = f"{file.parent.name}/{file.stem}"
            if wanted(name):
                yield from self.file(place, name, file)

    def file(self, place: Place, name: str, file: Path) -> Iterator[Outcome]:
        there = place.make(f"pjd-{name.replace('/', '-')}")
        ran = place.run(name, ["sh", str(file)], FILE_SECONDS_MAX, there)
        yield from read(name, ran)
        place.remove(there)


def read(name: str, ran: Ran) -> list[Outcome]:
    """The tests of one file, by their numbers; one more where the file did not come to its end."""
    found = [one(name, *line) for line in LINE.findall(ran.said)]
    plan = PLAN.search(ran.said)
    if ran.hung:
        found.append(Outcome(f"{name} end", Verdict.FAILED, f"had not ended after {FILE_SECONDS_MAX} s"))
    elif ran.code != 0 or not plan or len(found) != int(plan[1]):
        promised = plan[1] if plan else "none"
        found.append(
            Outcome(
                f"{name} end",
                Verdict.FAILED,
                f"ended with {ran.code}; tests promised {promised}, told {len(found)}: {last_line(ran.said)}",
            )
        )
    return found


def one(name: str, word: str, number: str, rest: str) -> Outcome:
    test = f"{name} {number}"
    if word == "ok":
        return Outcome(test, Verdict.PASSED)
    return Outcome(test, Verdict.SKIPPED if "# TODO" in rest else Verdict.FAILED, rest)
