"""PostgreSQL on a pool, under pgbench, with `kill -9` of its postmaster and of a daemon of the pool.

What pgbench was told is committed is in the database after recovery, once; nothing that no client sent is there; the books balance;
tables and indexes agree (amcheck), and so do checksums of pages (pg_checksums).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import trees
from doors import Failed, Place, Ran, User, run
from stopping import held
from suite import Wanted, by_code, last_line
from verdicts import Outcome, Verdict

FOLDERS = [str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
CLIENTS = 4
SCALE = 2
KILLS = 5
STEP_SECONDS_MAX = 300
SETTINGS = """
listen_addresses = ''
unix_socket_directories = '{sockets}'
max_wal_size = '64MB'
min_wal_size = '32MB'
checkpoint_timeout = '30s'
shared_buffers = '16MB'
log_min_messages = 'warning'
"""


class Postgresql:
    name = "postgresql"
    title = "a database under pgbench, with kill -9 of its postmaster and of a daemon of the pool"
    doors = ("below", "fuse", "preload")
    floors = dict.fromkeys(doors, 2 + KILLS)
    user = User("postgres")

    def prepare(self, _: trees.Trees) -> None:
        if os.geteuid() != 0:
            raise trees.Missing("it becomes the user postgres, which takes root")
        try:
            self.user.record()
        except KeyError as error:
            raise trees.Missing("there is no user postgres; run scripts/install-packages suites") from error
        names = ("initdb", "postgres", "pgbench", "psql", "pg_amcheck", "pg_checksums")
        self.programs = {name: trees.program(name, "postgresql", *FOLDERS) for name in names}

    def outcomes(self, place: Place, wanted: Wanted) -> Iterator[Outcome]:
        seed = int(os.environ.get("TIDEPOOL_SEED") or random.SystemRandom().randrange(1 << 32))
        print(f"  postgresql {place.door}: TIDEPOOL_SEED={seed}", flush=True)
        database = Database(place, self.programs, random.Random(seed))
        try:
            yield database.create()
            for kill in range(1, KILLS + 1):
                test = f"kill-postmaster-{kill}"
                if wanted(test):
                    yield database.crash(test, daemon=False)
            if place.pool is None:
                yield Outcome("kill-daemon", Verdict.SKIPPED, "no daemon is below")
            elif wanted("kill-daemon"):
                yield database.crash("kill-daemon", daemon=True)
            yield database.ends_well()
        finally:
            database.kill()


class Database:
    """A cluster of databases in the place; sockets and logs of clients lie outside."""

    def __init__(self, place: Place, programs: dict[str, str], chance: random.Random) -> None:
        self.place = place
        self.programs = programs
        self.chance = chance
        self.outside = place.scratch / "pg"
        self.outside.mkdir()
        os.chown(self.outside, Postgresql.user.record().pw_uid, Postgresql.user.record().pw_gid)
        self.server: subprocess.Popen[bytes] | None = None
        self.acknowledged = 0
        # Transactions under way at the crashes so far: each may have been committed, or not.
        self.in_doubt = 0

    def client(self, test: str, program: str, *words: str) -> Ran:
        env = {**os.environ, "PGHOST": str(self.outside), "PGDATABASE": "postgres", "LC_ALL": "C"}
        log = self.place.logs / f"{test}-{program}.log"
        argv = [self.programs[program], *words]
        return run(argv, STEP_SECONDS_MAX, log, env, cwd=self.outside, user=Postgresql.user)

    def number(self, query: str) -> int:
        ran = self.client("query", "psql", "-XAtq", "-c", query)
        if ran.code != 0:
            raise Failed(f"'{query}': {last_line(ran.said)}")
        return int(ran.said.strip())

    def create(self) -> Outcome:
        words = [self.programs["initdb"], "-D", "db", "--data-checksums", "--no-instructions", "-A", "trust"]
        made = self.place.run("create", words, STEP_SECONDS_MAX)
        if made.code != 0:
            raise Failed(f"initdb ended with {made.code}: {last_line(made.said)}")
        settings = SETTINGS.format(sockets=self.outside).replace("'", "'\\''")
        self.place.run("settings", ["sh", "-c", f"printf %s '{settings}' >>db/postgresql.conf"], STEP_SECONDS_MAX)
        self.start()
        for program, words in (("psql", ("-c", "CREATE EXTENSION amcheck")), ("pgbench", ("-i", "-q", "-s", str(SCALE)))):
            ran = self.client("create", program, *words)
            if ran.code != 0:
                raise Failed(f"{program} {' '.join(words)} ended with {ran.code}: {last_line(ran.said)}")
        return Outcome("create", Verdict.PASSED)

    def start(self) -> None:
        """Until it takes clients, which is after recovery."""
        with held():
            self.server = self.place.start("server", [self.programs["postgres"], "-D", "db"])
        deadline = time.monotonic() + STEP_SECONDS_MAX
        while self.client("start", "psql", "-XAtq", "-c", "SELECT 1").code != 0:
            if self.server.poll() is not None:
                raise Failed(f"postgres ended with {self.server.returncode}; see server.log")
            if time.monotonic() > deadline:
                raise Failed(f"postgres takes no clients after {STEP_SECONDS_MAX} s; see server.log")
            time.sleep(0.2)

    def kill(self, all_of_it: bool = True) -> None:
        """The postmaster, and with `all_of_it` its children; else these notice, and end. Whoever comes next finds nobody at the files."""
        if not self.server:
            return
        # It may have ended before, when a daemon was killed.
        postmaster = self.postmaster()
        children = descendants(postmaster) if postmaster else []
        for pid in [*([postmaster] if postmaster else []), *(children if all_of_it else [])]:
            send(pid, signal.SIGKILL)
        self.server.wait(STEP_SECONDS_MAX)
        deadline = time.monotonic() + STEP_SECONDS_MAX
        while any(Path(f"/proc/{pid}/exe").exists() for pid in children):
            if time.monotonic() > deadline:
                raise Failed("processes of postgres outlive their postmaster")
            time.sleep(0.1)
        self.server = None

    def postmaster(self) -> int | None:
        """Its process, while there is one; where a program runs through preload, `tidepool exec` waits for it."""
        assert self.server
        for pid in [self.server.pid, *descendants(self.server.pid)]:
            try:
                if os.readlink(f"/proc/{pid}/exe") == os.path.realpath(self.programs["postgres"]):
                    return pid
            except OSError:
                continue
        return None

    def crash(self, test: str, daemon: bool) -> Outcome:
        """pgbench, a kill in the middle of it, recovery, and the books."""
        bench = self.outside / test
        words = ["-n", "-c", str(CLIENTS), "-j", "2", "-T", str(STEP_SECONDS_MAX), "--log", f"--log-prefix={bench}"]
        seed = str(self.chance.randrange(1 << 31))
        child = self.background(test, "pgbench", *words, f"--random-seed={seed}")
        time.sleep(self.chance.uniform(0.3, 1.0) * self.place.seconds)
        if child.poll() is not None:
            return Outcome(test, Verdict.FAILED, f"pgbench ended with {child.returncode} before anything was killed")
        if daemon:
            self.kill_daemon()
        # A background writer that cannot write tries again for ever, and looks for its postmaster in between never.
        self.kill(all_of_it=daemon or self.chance.random() < 0.5)
        child.wait(STEP_SECONDS_MAX)
        if daemon:
            self.pool_again()
        done = sum(len(log.read_text().splitlines()) for log in self.outside.glob(f"{test}.*"))
        self.acknowledged += done
        self.in_doubt += CLIENTS
        self.start()
        wrong = self.books() if done else "pgbench had not committed anything before the kill"
        return Outcome(test, Verdict.FAILED, wrong) if wrong else Outcome(test, Verdict.PASSED)

    def background(self, test: str, program: str, *words: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "PGHOST": str(self.outside), "PGDATABASE": "postgres", "LC_ALL": "C"}
        with (self.place.logs / f"{test}.log").open("wb") as log:
            return subprocess.Popen(
                [self.programs[program], *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                cwd=self.outside, start_new_session=True, **Postgresql.user.words(),
            )  # fmt: skip

    def kill_daemon(self) -> None:
        """One of the pool's, with transactions under way. They fail; what was acknowledged before has to stay."""
        assert self.place.pool
        send(self.chance.choice(self.place.pool.daemons()), signal.SIGKILL)
        time.sleep(2)

    def pool_again(self) -> None:
        assert self.place.pool
        self.place.pool.unmount_all()
        self.place.pool.command("pool", "stop", "--pool", "suites", "--keep")
        self.place.pool.start("--keep")
        self.place.enter()

    def books(self) -> str:
        """What is wrong with them; nothing, if nothing is."""
        found = self.number("SELECT count(*) FROM pgbench_history")
        if not self.acknowledged <= found <= self.acknowledged + self.in_doubt:
            return f"{found} transactions are there; {self.acknowledged} were acknowledged, {self.in_doubt} in doubt"
        sums = [("pgbench_history", "delta"), ("pgbench_accounts", "abalance"), ("pgbench_tellers", "tbalance"),
                ("pgbench_branches", "bbalance")]  # fmt: skip
        found_sums = {table: self.number(f"SELECT sum({column}) FROM {table}") for table, column in sums}
        if len(set(found_sums.values())) != 1:
            return f"the books do not balance: {found_sums}"
        accounts = self.number("SELECT count(DISTINCT aid) FROM pgbench_accounts")
        if accounts != SCALE * 100_000:
            return f"{accounts} accounts, not {SCALE * 100_000}"
        checked = self.client("books", "pg_amcheck", "--heapallindexed", "--parent-check", "postgres")
        return "" if checked.code == 0 else f"pg_amcheck ended with {checked.code}: {checked.said.strip()[:300]}"

    def ends_well(self) -> Outcome:
        """A fast shutdown, then all pages against their checksums."""
        assert self.server
        send(self.postmaster() or self.server.pid, signal.SIGINT)
        code = self.server.wait(STEP_SECONDS_MAX)
        self.server = None
        if code != 0:
            return Outcome("checksums", Verdict.FAILED, f"postgres ended with {code} on SIGINT")
        words = [self.programs["pg_checksums"], "--check", "-D", "db"]
        return by_code("checksums", self.place.run("checksums", words, STEP_SECONDS_MAX), STEP_SECONDS_MAX)


def send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def descendants(pid: int) -> list[int]:
    """Processes that came of this one, as far as the ones between live."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            child, rest = stat.read_text().split(" ", 1)
        except (OSError, ValueError):
            continue
        parents.setdefault(int(rest.rsplit(")", 1)[1].split()[1]), []).append(int(child))
    found: list[int] = []
    ahead = [pid]
    while ahead:
        children = parents.get(ahead.pop(0), [])
        found += children
        ahead += children
    return found
