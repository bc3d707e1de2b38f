"""What a hostile user tries against the stagers of a cluster, and against whoever else uses them. Usage: hostile.py FACTS WHAT...

WHAT is an interface (wire, norns, c, python, command), or files, processes, worker, relay, garbage, board, flood. Each attempt prints a line
of JSON: whether it was done, what was said, and whether that names the cause. The client of format 11 is one that a user would write.
"""

import ctypes
import errno
import json
import os
import re
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time

FACTS = json.load(open(sys.argv[1]))
ALICE, BOB = 20001, 20002
IN_JOB = "SLURM_JOB_ID" in os.environ
NODE = os.uname().nodename
OTHER = f"node{int(NODE[4:]) % 4 + 1}" if NODE.startswith("node") else "node1"
RUN = "/run/tidepool/stager/"
COPY, MOVE, REMOVE = 1, 2, 3

# What has to be said: the code of the published interface, the system's error number, or the command's exit code.
PERMIT = r"code -50\b|exit 122:"
NO_TASK = r"code -41\b|exit 120:.*no task"
DENIED = r"errno 13\b|exit 117:.*permission denied"
MISSING = r"errno 2\b|exit 117:.*no such file"


class NoWords(Exception):
    """There is no way to ask for this through the interface; the table of the test says what."""


class Refused(Exception):
    pass


def refused(code, number, detail):
    return Refused(f"code {code} errno {number}: {detail}")


def attempt(by, name, cause, act):
    """Prints how it went. An interface that has no words for it says so by NoWords: then there is no such attempt."""
    try:
        said, done = act(), True
    except NoWords:
        return
    except OSError as error:
        said, done = f"errno {error.errno}: {error}", False
    except Exception as error:
        said, done = str(error), False
    named = not done and re.search(cause, said, re.IGNORECASE | re.DOTALL) is not None
    print(json.dumps({"by": by, "name": name, "done": done, "named": named, "said": str(said)[:600]}), flush=True)


# --- Format 11, as a program of the user's own speaks it.


def text(value):
    value = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<I", len(value)) + value


def option(value):
    return b"\0" if value is None else b"\1" + value


def frame(kind, body=b"", number=1):
    return struct.pack("<IHHQ", len(body), kind, 0, number) + body


def numbers(*values):
    return struct.pack(f"<{len(values)}I", *values)


HELLO = frame(1, b"TPSTAGER" + struct.pack("<H", 1) + text("x"), 0)


def place(where):
    """`[HOST:PORT/]NAME://PATH` in its parts."""
    host, rest = None, where
    if "/" in where.split("://")[0]:
        host, rest = where.split("/", 1)
    name, path = rest.split("://", 1)
    return host, name + "://", path


class Wire:
    name = "wire"

    def __init__(self, path=RUN + "user.socket"):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(path)
        self.socket.sendall(HELLO)
        self.stager = struct.unpack_from("<I", self.receive()[1][2:], 4 + len(NODE))[0]

    def take(self, count):
        got = b""
        while len(got) < count:
            more = self.socket.recv(count - len(got))
            if not more:
                raise Refused("closed")
            got += more
        return got

    def receive(self):
        head = self.take(16)
        return struct.unpack_from("<H", head, 4)[0], self.take(struct.unpack_from("<I", head)[0])

    def ask(self, kind, body=b""):
        self.socket.sendall(frame(kind, body))
        kind, body = self.receive()
        if kind == 1:
            code, number, length = struct.unpack_from("<iiI", body)
            raise refused(code, number, body[12 : 12 + length].decode())
        return kind, body

    @staticmethod
    def end(where):
        if isinstance(where, ctypes.Array):
            return b"\1" + struct.pack("<QQ", ctypes.addressof(where), len(where))
        host, name, path = place(where)
        return b"\2" + (b"\2" if host else b"\1") + text(name) + option(text(host) if host else None) + text(path)

    def task(self, op, src, dst, priority=0, bandwidth=0, behalf=None):
        ends = self.end(src) + option(self.end(dst) if dst is not None else None)
        wishes = struct.pack("<iBQQ", priority, 1, bandwidth, 0)
        return bytes([op]) + ends + wishes + option(numbers(*behalf) if behalf else None)

    def start(self, *words, **wishes):
        return struct.unpack("<I", self.ask(10, self.task(*words, **wishes))[1])[0]

    def submit(self, *words, **wishes):
        return self.wait(self.start(*words, **wishes))

    def wait(self, task):
        body = numbers(1, task) + b"\0\1" + struct.pack("<Q", 60000)
        _, body = self.ask(13, body)
        state = body[9]
        if state in (4, 5):
            code, number, length = struct.unpack_from("<iiI", body, 11)
            raise refused(code, number, body[23 : 23 + length].decode())
        return f"state {state}"

    def about(self, what, task):
        kind = {"status": 12, "wait": 13, "cancel": 14, "resume": 15, "forget": 20}[what]
        return self.ask(kind, numbers(1, task) + b"\0\0" if kind == 13 else numbers(task))

    def views(self):
        everything = b"\0\0" + numbers(0, 1000)
        yield "list", lambda: self.ask(16, everything)[1]
        yield "list of her job", lambda: self.ask(16, b"\1" + numbers(FACTS["alice_job"]) + b"\0" + numbers(0, 1000))[1]
        yield "kept", lambda: self.ask(23)[1]
        yield "dataspaces", lambda: self.ask(19)[1]

    def persist(self, op, where, user):
        _, name, path = place(where)
        return self.ask(22, bytes([op]) + text(name) + text(path) + numbers(user) + struct.pack("<Q", 0))

    def plan(self, src, dst):
        kind, body = self.ask(17, self.task(COPY, src, dst))
        # A plan with problems is one that says why not.
        if b"ermission" in body:
            raise Refused("errno 13: " + body.decode(errors="replace"))
        return body

    def entries(self, where, behalf=None):
        return self.ask(57, self.end(where) + option(numbers(*behalf) if behalf else None) + text("") + numbers(100))

    def administer(self):
        job, me = FACTS["alice_job"], os.getpid()
        space = text("evil://") + b"\1" + text("/") + b"\0" + struct.pack("<QIQ", 0, 0, 0)
        lustre = text("lustre://") + b"\1" + text("/etc") + b"\0" + struct.pack("<QIQ", 0, 0, 0)
        spec = lambda id: numbers(id, 1) + text(NODE) + numbers(1) + text("lustre://") + struct.pack("<QQ", 0, 0)
        held = numbers(1) + self.task(COPY, "lustre://roots", "nvme0://bob/loot", behalf=(0, 0, job))
        yield "register /", 40, space
        yield "redirect a dataspace", 41, lustre
        yield "unregister a dataspace", 42, text("lustre://")
        yield "register a job", 43, spec(4711)
        yield "change her job", 44, spec(job)
        yield "unregister her job", 45, numbers(job)
        yield "join her job", 46, numbers(job, me, BOB, BOB)
        yield "take a process out of her job", 47, numbers(job, FACTS["alice_process"], ALICE, ALICE)
        yield "pause", 48, b"\2"
        yield "shut down", 48, b"\4"
        yield "jobs", 49, b""
        yield "leftovers", 50, text("nvme0://") + numbers(100)
        yield "order", 51, b"\2"
        yield "clean her job up", 52, numbers(job, 0) + b"\0"
        yield "hold tasks as root", 55, held
        yield "release her job", 56, numbers(job)
        yield "keep her data no more", 58, text("nvme0://") + text("alice-kept") + numbers(ALICE)
        yield "clean her job's node", 59, numbers(job, 0)
        yield "register a job of root's", 60, spec(4711) + numbers(0, 0)
        yield "report of her job", 21, numbers(job)

    def admin(self):
        for name, kind, body in self.administer():
            yield name, lambda: self.ask(kind, body)


# --- The published interface, byte by byte.


def varint(value):
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(body):
    found, at = {}, 0

    def read():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte, at = body[at], at + 1
            value, shift = value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(body):
        tag = read()
        value = read() if tag & 7 == 0 else None
        if tag & 7 == 2:
            length = read()
            value, at = body[at : at + length], at + length
        elif tag & 7 == 1:
            value, at = body[at : at + 8], at + 8
        found[tag >> 3] = value
    return found


def signed(value):
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


class Norns:
    name = "norns"

    def ask(self, type, **more):
        body = field(1, type) + b"".join(field(int(key[1:]), value) for key, value in more.items())
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(60)
        connection.connect(RUN + "norns.socket")
        connection.sendall(struct.pack(">Q", len(body)) + body)
        connection.shutdown(socket.SHUT_WR)
        got = b""
        while more := connection.recv(65536):
            got += more
        answer = fields(got[8:])
        if code := signed(answer.get(2, 0)):
            raise refused(code, 0, "")
        return answer

    @staticmethod
    def end(where):
        if isinstance(where, ctypes.Array):
            return field(1, 0x100000) + field(3, field(1, ctypes.addressof(where)) + field(2, len(where)))
        host, name, path = place(where)
        at = field(1, name) + (field(2, host) if host else b"") + field(3, path) + field(4, 0)
        return field(1, 0x200020 if host else 0x200010) + field(4, at)

    def submit(self, op, src, dst, **wishes):
        if wishes:
            raise NoWords
        null = field(1, 0x1000000)
        task = field(1, 0) + field(2, op) + field(3, self.end(src)) + field(4, self.end(dst) if dst is not None else null)
        id = self.ask(1, _2=task)[3]
        while True:
            stats = fields(self.status(id)[4])
            if signed(stats[1]) == -104:
                raise refused(signed(stats[2]), stats[3], "")
            if signed(stats[1]) == -103:
                return "finished"
            time.sleep(0.05)

    def status(self, id):
        nothing = field(1, 0x1000000)
        return self.ask(2, _2=field(1, id) + field(2, 1) + field(3, nothing) + field(4, nothing))

    def about(self, what, task):
        if what != "status":
            raise NoWords
        return self.status(task)

    def views(self):
        return ()

    def admin(self):
        job = FACTS["alice_job"]
        spec = field(1, NODE) + field(2, field(1, "lustre://") + field(2, 0))
        process = lambda uid, pid: field(1, uid) + field(2, uid) + field(3, pid)
        space = lambda name, mount: field(1, name) + field(2, field(1, 0x10000004) + field(2, 0) + field(3, mount) + field(4, 1))
        for name, type, more in (
            ("register /", 9, {"_6": space("evil://", "/")}),
            ("redirect a dataspace", 10, {"_6": space("lustre://", "/etc")}),
            ("unregister a dataspace", 11, {"_6": field(1, "lustre://")}),
            ("register a job", 4, {"_3": 4711, "_4": spec}),
            ("change her job", 5, {"_3": job, "_4": spec}),
            ("unregister her job", 6, {"_3": job}),
            ("join her job", 7, {"_3": job, "_5": process(BOB, os.getpid())}),
            ("take a process out of her job", 8, {"_3": job, "_5": process(ALICE, FACTS["alice_process"])}),
            ("pause", 1001, {"_7": field(1, 1001)}),
            ("shut down", 1001, {"_7": field(1, 1003)}),
        ):
            yield name, lambda: self.ask(type, **more)


# --- The C libraries: a program for each call. What they say is told by it.


class Library:
    name = "c"

    def run(self, *words, control=None):
        more = {"TIDEPOOL_STAGER_CONTROL": control} if control else {}
        done = subprocess.run([FACTS["c"], *map(str, words)], capture_output=True, text=True, env={**os.environ, **more})
        if done.returncode:
            raise Refused(done.stdout + done.stderr)
        return done.stdout

    def submit(self, op, src, dst, **wishes):
        if wishes:
            raise NoWords
        words = []
        for where in (src, dst):
            if isinstance(where, ctypes.Array):
                words += ["memory", "-", "-"]
            else:
                host, name, path = place(where) if where is not None else (None, "-", "-")
                words += [name, host or "-", path]
        return self.run("submit", op, *words)

    def about(self, what, task):
        if what not in ("status", "wait", "cancel"):
            raise NoWords
        return self.run(what, task)

    def views(self):
        return ()

    def admin(self):
        # The control socket is not his; what he can reach is the user socket, said to be the control socket.
        for name in ("command", "register", "update", "unregister", "job", "change", "end", "join", "leave"):
            yield name + ", by the control socket", lambda: self.run(name, FACTS["alice_job"], FACTS["alice_process"])
            yield name, lambda: self.run(name, FACTS["alice_job"], FACTS["alice_process"], control=RUN + "user.socket")


# --- The Python package.


class Package:
    name = "python"

    def __init__(self):
        sys.path.insert(0, FACTS["package"])
        from tidepool import errors, stage

        self.stage, self.error = stage, errors.TidepoolError
        self.stager = stage.Stager(RUN + "user.socket")

    def ask(self, act):
        try:
            return act()
        except self.error as error:
            raise refused(error.code, error.errno, error.detail) from None

    def submit(self, op, src, dst, priority=0, bandwidth=0, behalf=None):
        behalf = self.stage.OnBehalf(*behalf) if behalf else None
        spec = self.stage.TaskSpec(self.stage.Op(op), src, dst, priority, True, bandwidth, 0, behalf)
        return self.ask(lambda: self.stager.wait(self.stager.submit_task(spec), 60).check())

    def about(self, what, task):
        return self.ask(lambda: getattr(self.stager, what)(task))

    def views(self):
        yield "list", lambda: self.ask(self.stager.list)
        yield "list of her job", lambda: self.ask(lambda: self.stager.list(job=FACTS["alice_job"]))
        yield "kept", lambda: self.ask(self.stager.persisted)
        yield "dataspaces", lambda: self.ask(self.stager.dataspaces)

    def persist(self, op, where, user):
        _, name, path = place(where)
        return self.ask(lambda: self.stager.wait(self.stager.persist(self.stage.PersistOp(op), name, path, user=user), 60).check())

    def plan(self, src, dst):
        plan = self.ask(lambda: self.stager.plan(self.stage.Op.COPY, src, dst))
        if any("ermission" in problem for problem in plan.problems):
            raise Refused(f"errno 13: {plan.problems}")
        return plan

    def admin(self):
        stage, stager, job = self.stage, self.stager, FACTS["alice_job"]
        spec = lambda id: stage.JobSpec(id, (NODE,), (stage.JobLimit("lustre://"),))
        space = lambda name, mount: stage.DataspaceSpec(name, stage.DataspaceKind.LOCAL, mount)
        for name, act in (
            ("register /", lambda: stager.register_dataspace(space("evil://", "/"))),
            ("redirect a dataspace", lambda: stager.update_dataspace(space("lustre://", "/etc"))),
            ("unregister a dataspace", lambda: stager.unregister_dataspace("lustre://")),
            ("register a job", lambda: stager.register_job(spec(4711))),
            ("change her job", lambda: stager.update_job(spec(job))),
            ("unregister her job", lambda: stager.unregister_job(job)),
            ("join her job", lambda: stager.add_process(job, stage.ProcessSpec(os.getpid(), BOB, BOB))),
            ("take a process out of her job", lambda: stager.remove_process(job, stage.ProcessSpec(FACTS["alice_process"], ALICE, ALICE))),
            ("pause", lambda: stager.command(stage.Command.PAUSE)),
            ("shut down", lambda: stager.command(stage.Command.SHUTDOWN)),
            ("jobs", stager.jobs),
            ("leftovers", lambda: stager.leftovers("nvme0://")),
            ("order", lambda: stager.set_policy(stage.Policy.SHORTEST_FIRST)),
            ("report of her job", lambda: stager.job_report(job)),
        ):
            yield name, lambda: self.ask(act)
        yield "control socket", lambda: self.ask(lambda: stage.Stager(RUN + "control.socket"))


# --- The command line.


class CommandLine:
    name = "command"

    def run(self, *words):
        done = subprocess.run([FACTS["tidepool"], *map(str, words)], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)
        said = done.stdout + done.stderr
        if done.returncode:
            raise Refused(f"exit {done.returncode}: {said}")
        return said

    def stage(self, *words):
        return self.run("stage", "--socket", RUN + "user.socket", *words)

    def submit(self, op, src, dst, priority=0, bandwidth=0, behalf=None):
        if any(isinstance(where, ctypes.Array) for where in (src, dst)):
            raise NoWords
        words = ["--wait", f"--priority={priority}"] + ([f"--bandwidth={bandwidth}"] if bandwidth else [])
        words += ["--on-behalf", ":".join(map(str, behalf))] if behalf else []
        return self.stage("submit", *words, {COPY: "copy", MOVE: "move", REMOVE: "remove"}[op], src, *([dst] if dst else []))

    def about(self, what, task):
        return self.stage(what, task)

    def views(self):
        yield "list", lambda: self.stage("list")
        yield "list of her job", lambda: self.stage("list", "--job", FACTS["alice_job"])
        yield "kept", lambda: self.stage("persist", "list")
        yield "dataspaces", lambda: self.stage("dataspace", "list")

    def persist(self, op, where, user):
        name = {1: "store", 2: "delete", 3: "share", 4: "unshare"}[op]
        return self.stage("persist", name, where, *([user] if op > 2 else []))

    def plan(self, src, dst):
        try:
            return self.stage("plan", "copy", src, dst)
        except Refused as error:
            raise Refused(re.sub("exit 12[03]", "exit 117", str(error))) from None

    def admin(self):
        job, me = FACTS["alice_job"], os.getpid()
        own = os.path.expanduser("~/own.secret")
        with open(own, "w") as file:
            file.write("5a" * 32 + "\n" + "07" * 32 + "\n")
        os.chmod(own, 0o600)
        for name, words in (
            ("register /", "dataspace register evil:// --mount /"),
            ("redirect a dataspace", "dataspace update lustre:// --mount /etc"),
            ("unregister a dataspace", "dataspace unregister lustre://"),
            ("register a job", f"job register 4711 --owner 0:0 --host {NODE} --limit lustre://"),
            ("change her job", f"job update {job} --host {NODE} --limit lustre://"),
            ("unregister her job", f"job unregister {job}"),
            ("join her job", f"job add-process {job} {me} --uid {BOB} --gid {BOB}"),
            ("take a process out of her job", f"job remove-process {job} {FACTS['alice_process']} --uid {ALICE} --gid {ALICE}"),
            ("clean her job up", f"job ready {job} --clean"),
            ("release her job", f"job release {job}"),
            ("report of her job", f"job report {job}"),
            ("jobs", "job list"),
            ("leftovers", "dataspace leftovers nvme0://"),
            ("order", "policy fair-by-user"),
            ("pause", "pause"),
            ("shut down", "shutdown"),
        ):
            yield name, lambda: self.stage(*words.split())
        for name, cause, words in (
            ("control socket", "exit 122:.*permission denied", "stage --control job list"),
            ("another node, with a secret of his", "exit 122:.*the secret is wrong", f"stage --at {OTHER}:42000 --secret-file {own} job list"),
            ("the node's secret", "permission denied", f"stage --at {OTHER}:42000 --secret-file {FACTS['dir']}/etc/stager-{NODE}.secret job list"),
            ("her pool", "no pool|permission denied|not found", f"ls --pool job-{job} /"),
            ("stop her pool", "no pool|permission denied|not found", f"pool stop --pool job-{job}"),
            ("clean up in her name", "root|permitted|permission", f"node-clean --job {job} --as {ALICE}:{ALICE}"),
            ("the epilog of her job", "permi|exit 12", f"slurm epilog --job {job} --user {ALICE}:{ALICE} --jobs-dir /run/tidepool/jobs --limit 5s"),
            ("an agent as root", "permission|exit", f"pool start --name evil --stagers {OTHER}={OTHER}:42000 --secret-file {own} --as 0:0 --job 9"),
            ("resume her job", "another user|nothing of it waits", f"slurm resume {job}"),
            ("discard her job", "another user|nothing of it waits", f"slurm discard {job}"),
            ("sweep", "belongs to user 20003", f"slurm sweep --site {FACTS['dir']}/etc/slurm.toml"),
            ("--out over her file", "permission", f"jobs describe {FACTS['log']} --csv {FACTS['pfs']}/alice/open/letter"),
            ("--out through a link", "permission", f"jobs describe {FACTS['log']} --csv {FACTS['pfs']}/bob/ways/letter"),
            ("--out into root's", "permission", f"jobs describe {FACTS['log']} --csv {FACTS['dir']}/etc/slurm.toml"),
        ):
            yield (name, cause), lambda: self.run(*words.split())


INTERFACES = {driver.name: driver for driver in (Wire, Norns, Library, Package, CommandLine)}


def of_hers(seen, job):
    """What is shown to him has nothing about her."""
    seen = seen.decode(errors="replace") if isinstance(seen, bytes) else str(seen)
    if not any(word in seen for word in ("alice/big", "alice/nothing", "alice-kept", f"pool-{job}://")):
        raise Refused("nothing of hers")
    return seen


def through(driver):
    """Everything that the issue names and this interface can say."""
    by = driver.name
    held = socket.socket()
    held.bind(("0.0.0.0", 0))
    held.listen()
    evil = f"{NODE}:{held.getsockname()[1]}"
    job, loot = FACTS["alice_job"], "nvme0://bob/loot"
    memory = ctypes.create_string_buffer(b"x" * 4096, 4096)
    elsewhere = r"code -200\b|exit 117:.*none of the stagers that tasks may go to"
    # By a link or by "..": the dataspace ends where it is mounted, and a way to her is hers.
    leads_out = r"errno (13|18)\b|exit 117:.*leads out of the dataspace"
    for name, cause, task in (
        ("reads her file", DENIED, (COPY, "lustre://alice/private/secret", loot)),
        ("reads her file of the node", DENIED, (COPY, "nvme0://alice-own/secret", loot)),
        ("reads root's file", DENIED, (COPY, "lustre://roots", loot)),
        ("reads into memory", DENIED, (COPY, "lustre://alice/private/secret", memory)),
        ("goes up", DENIED, (COPY, "lustre://bob/../alice/private/secret", loot)),
        ("goes above the mount", leads_out + "|" + MISSING, (COPY, "nvme0://../../../../etc/shadow", loot)),
        ("begins at the root", MISSING, (COPY, "lustre:///etc/shadow", loot)),
        ("follows his link to her", leads_out, (COPY, "lustre://bob/ways/alice/secret", loot)),
        ("writes over hers", DENIED, (COPY, "lustre://bob/in", "lustre://alice/private/secret")),
        ("writes over what he may read", DENIED, (COPY, "lustre://bob/in", "lustre://alice/open/letter")),
        ("writes over hers of the node", DENIED, (COPY, "lustre://bob/in", "nvme0://alice-own/secret")),
        ("writes over root's", DENIED + r"|errno 1\b|exit 117:", (COPY, "lustre://bob/in", "lustre://roots")),
        ("writes from memory", DENIED, (COPY, memory, "lustre://alice/private/secret")),
        ("writes through his link", leads_out, (COPY, "lustre://bob/in", "lustre://bob/ways/alice/secret")),
        ("moves hers away", DENIED, (MOVE, "lustre://alice/open/letter", loot)),
        ("removes hers", DENIED, (REMOVE, "lustre://alice/open/letter", None)),
        ("removes hers of the node", DENIED + r"|errno 1\b|exit 117:", (REMOVE, "nvme0://alice-own", None)),
        ("removes root's", DENIED + r"|errno 1\b|exit 117:", (REMOVE, "lustre://roots", None)),
        ("reads her pool", PERMIT + r"|code -31\b|exit 120:", (COPY, f"pool-{job}://in", loot)),
        ("brings from his own host", elsewhere, (COPY, f"{evil}/lustre://x", loot)),
        ("sends to his own host", elsewhere, (COPY, "lustre://bob/in", f"{evil}/nvme0://x")),
        ("reads hers at another node", DENIED, (COPY, f"{OTHER}:42000/nvme0://alice-own/secret", loot)),
        ("writes hers at another node", DENIED, (COPY, "lustre://bob/in", f"{OTHER}:42000/nvme0://alice-own/secret")),
    ):
        attempt(by, name, cause if IN_JOB else PERMIT, lambda: driver.submit(*task))
    read = (COPY, "lustre://alice/private/secret", loot)
    for name, cause, wishes in (
        ("as root", PERMIT, {"behalf": (0, 0, 0)}),
        ("as Alice", PERMIT, {"behalf": (ALICE, ALICE, job)}),
        ("for her job", PERMIT, {"behalf": (BOB, BOB, job)}),
        ("before all others", PERMIT + "|user-priority-max", {"priority": 2**31 - 1}),
        ("for ever", PERMIT + "|bandwidth-min", {"bandwidth": 1}),
    ):
        attempt(by, name, cause, lambda: driver.submit(*read, **wishes))
    for id, what in zip(FACTS["alice_tasks"][NODE], ("running", "failed")):
        for verb in ("status", "wait", "cancel", "resume", "forget"):
            attempt(by, f"{verb} of her {what} task", NO_TASK, lambda: driver.about(verb, id))
    for name, look in driver.views():
        attempt(by, name, PERMIT + "|nothing of hers", lambda: of_hers(look(), job))
    for op, name in enumerate(("keeps", "deletes", "shares", "unshares"), 1):
        if hasattr(driver, "persist"):
            cause = PERMIT + r"|code -11[01]\b|errno 13\b|exit 1(17|20):"
            attempt(by, f"{name} what she keeps", cause, lambda: driver.wait(struct.unpack("<I", driver.persist(op, "nvme0://alice-kept", BOB)[1])[0]) if by == "wire" else driver.persist(op, "nvme0://alice-kept", BOB))
    if hasattr(driver, "plan"):
        attempt(by, "plans her file", DENIED + "|" + PERMIT if IN_JOB else PERMIT, lambda: driver.plan(*read[1:]))
    if hasattr(driver, "entries"):
        attempt(by, "looks into her directory", DENIED + "|" + PERMIT, lambda: driver.entries("lustre://alice/private"))
        attempt(by, "looks there as her", PERMIT, lambda: driver.entries("lustre://alice/private", (ALICE, ALICE, job)))
    for name, act in driver.admin():
        name, cause = name if isinstance(name, tuple) else (name, PERMIT + r"|code -6\b")
        attempt(by, name, cause, act)
    held.settimeout(0)
    try:
        said, called = str(held.accept()[1]), True
    except BlockingIOError:
        said, called = "nobody", False
    print(json.dumps({"by": by, "name": "his host is called", "done": called, "named": True, "said": said}), flush=True)


# --- Beside the interfaces: files, processes, sockets.


def every(by, name, cause, acts):
    """One line for many tries: not one of them may be done, and each names the cause."""
    done, said = [], set()
    for what, act in acts:
        try:
            act()
            done.append(what)
        except (OSError, Refused) as error:
            said.add(f"errno {error.errno}" if isinstance(error, OSError) else str(error))
    named = all(re.search(cause, words, re.IGNORECASE) for words in said)
    print(json.dumps({"by": by, "name": name, "done": bool(done), "named": named and not done, "said": f"{sorted(said)} but {done[:20]}"}), flush=True)


def files():
    """Everything of root's, of the controller's and of hers, on this node and in the shared file system."""
    for top in FACTS["not_his"]:
        acts = []

        def change(path):
            entry = os.path.join(path, "planted")
            acts.extend((
                (f"file in {path}", lambda: os.close(os.open(entry, os.O_CREAT | os.O_EXCL | os.O_WRONLY))),
                (f"FIFO in {path}", lambda: os.mkfifo(entry)),
                (f"link in {path}", lambda: os.symlink("/dev/zero", entry)),
                (f"directory in {path}", lambda: os.mkdir(entry)),
                (f"move of {path}", lambda: os.rename(path, path + "-away")),
                (f"mode of {path}", lambda: os.chmod(path, 0o777)),
            ))

        def spoil(path):
            acts.extend((
                (f"write to {path}", lambda: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))),
                (f"truncate {path}", lambda: os.truncate(path, 0)),
                (f"unlink {path}", lambda: os.unlink(path)),
                (f"move of {path}", lambda: os.rename(path, path + "-away")),
                (f"mode of {path}", lambda: os.chmod(path, 0o777)),
                (f"link to {path}", lambda: os.link(path, os.path.expanduser("~/planted"))),
            ))

        change(top)
        for path, dirs, names in os.walk(top):
            for name in dirs:
                change(os.path.join(path, name))
            for name in names:
                at = os.path.join(path, name)
                # Sockets and devices are for users to write to, where their mode says so.
                if not stat.S_ISSOCK(mode := os.lstat(at).st_mode) and not stat.S_ISCHR(mode):
                    spoil(at)
        # Not there is refused, too: it is in a directory that he cannot look into, or nobody has made it.
        every("files", f"changes {top}", r"errno (1|2|13|18)\b", acts)
    every("files", "reads secrets", r"errno (2|13)\b", [(path, lambda path=path: open(path).close()) for path in FACTS["secrets"]])


def processes():
    """Every process and thread of the cluster that is not his, by every call that does something to one."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name, *words):
        if getattr(libc, name)(*words) < 0:
            raise OSError(ctypes.get_errno(), name)

    def through_pidfd(pid, number):
        held = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(held, number)
        finally:
            os.close(held)

    buffer = ctypes.create_string_buffer(8)
    vector = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), 8)
    calls = {
        "SIGKILL": lambda pid, tid: os.kill(tid, signal.SIGKILL),
        "SIGSTOP": lambda pid, tid: os.kill(tid, signal.SIGSTOP),
        "SIGHUP": lambda pid, tid: os.kill(tid, signal.SIGHUP),
        "SIGBUS by pidfd": lambda pid, tid: through_pidfd(pid, signal.SIGBUS),
        "limits": lambda pid, tid: resource.prlimit(tid, resource.RLIMIT_NOFILE, (8, 8)),
        "trace": lambda pid, tid: call("ptrace", 0x4206, tid, 0, 0),
        "memory": lambda pid, tid: call("process_vm_readv", pid, vector, 1, vector, 1, 0),
        "affinity": lambda pid, tid: os.sched_setaffinity(tid, {0}),
        "priority": lambda pid, tid: os.setpriority(os.PRIO_PROCESS, tid, 19),
        "/proc/PID/mem": lambda pid, tid: os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR)),
        "/proc/PID/fd": lambda pid, tid: os.listdir(f"/proc/{pid}/fd"),
        "/proc/PID/environ": lambda pid, tid: open(f"/proc/{pid}/environ", "rb").read(1),
        "/proc/PID/oom_score_adj": lambda pid, tid: open(f"/proc/{pid}/oom_score_adj", "w").write("1000"),
    }
    # Some have ended by now.
    alive = [pid for pid in FACTS["victims"] if os.path.exists(f"/proc/{pid}")]
    threads = [(pid, int(tid)) for pid in alive for tid in os.listdir(f"/proc/{pid}/task")]
    for name, act in calls.items():
        every("processes", name, r"errno (1|3|13)\b", [(f"{pid}/{tid}", lambda: act(pid, tid)) for pid, tid in threads])
    print(json.dumps({"by": "processes", "name": "threads", "done": len(threads) < 50, "named": True, "said": len(threads)}))


def worker():
    """His own worker is his to kill, not to trace; and root's stager only learns that it has ended."""
    wire = Wire()
    task = wire.start(COPY, "lustre://bob/big", "nvme0://bob/big", bandwidth=65536)
    own, until = [], time.time() + 30
    while not own and time.time() < until:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
                if int(fields[1]) == wire.stager and os.stat(f"/proc/{pid}").st_uid in (0, BOB) and f"Uid:\t{BOB}\t{BOB}" in open(f"/proc/{pid}/status").read():
                    own.append(int(pid))
            except OSError:
                pass
        time.sleep(0.05)
    pid, libc = own[0], ctypes.CDLL(None, use_errno=True)
    every("worker", "is traced", r"errno (1|13)\b", (
        ("memory", lambda: os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))),
        ("descriptors", lambda: os.listdir(f"/proc/{pid}/fd")),
        ("trace", lambda: (_ for _ in ()).throw(OSError(errno.EPERM, "")) if libc.ptrace(0x4206, pid, 0, 0) < 0 else None),
    ))
    os.kill(pid, signal.SIGKILL)
    attempt("worker", "is killed", "signal 9", lambda: wire.wait(task))
    attempt("worker", "takes the stager along", "same", lambda: "another" if Wire().stager != wire.stager else (_ for _ in ()).throw(Refused("the same")))


def crc32c(data):
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def remote_frame(kind, meta=b""):
    """Of format 13, with right checksums."""
    head = b"TPR1" + struct.pack("<HHIII", kind, 0, 1, len(meta), 0)
    return head + struct.pack("<II", crc32c(head + meta), crc32c(b"")) + meta


def exactly(connection, count):
    got = b""
    while len(got) < count:
        more = connection.recv(count - len(got))
        if not more:
            raise Refused("closed")
        got += more
    return got


def one_frame(connection):
    head = exactly(connection, 28)
    return head + exactly(connection, sum(struct.unpack_from("<II", head, 12)))


def answer(connection):
    """What a stager says that has not been proved anything: it refuses, or ends the connection."""
    try:
        said = one_frame(connection)
    except ConnectionError:
        raise Refused("closed") from None
    if said[4] == 5:
        raise Refused("refused: " + said[32:].decode(errors="replace"))
    return f"message {said[4]}"


def garbage():
    """At the port of each stager, without the secret."""
    root = text("nvme0://") + text("alice-own") + b"\1" + numbers(0, 0, 0) + b"\0"
    for node in FACTS["nodes"]:
        for name, kind, meta in (
            ("administers", 60, b""),
            ("starts an agent as root", 61, numbers(0, 0, 0, 7, 0)),
            ("opens a directory as root", 16, root),
            ("joins a session", 17, b"\0" * 16),
            ("greets as before", 1, struct.pack("<H", 1) + b"\0" * 32),
            ("claims to be proved", 4, b""),
            ("greets with nothing", 6, struct.pack("<H", 2) + text(b"\0" * 48)),
        ):
            connection = socket.create_connection((node, 42000), timeout=30)
            connection.sendall(remote_frame(kind, meta))
            attempt("garbage", f"{name} at {node}", "closed|refused", lambda: answer(connection))


def relay():
    """Passes on the greeting of somebody who has the secret, and goes on in his place (the issue's first way to root)."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("0.0.0.0", FACTS["relay"]))
    listener.listen()
    open(os.path.expanduser("~/listening"), "w").close()
    victim, _ = listener.accept()
    stager = socket.create_connection(("node1", 42000), timeout=30)
    for connection in (victim, stager):
        connection.settimeout(30)
    stager.sendall(one_frame(victim))
    victim.sendall(one_frame(stager))
    stager.sendall(one_frame(victim))
    length = exactly(stager, 2)
    accepted = length + exactly(stager, struct.unpack("<H", length)[0])
    print(json.dumps({"by": "relay", "name": "the greeting is passed on", "done": False, "named": len(accepted) > 16, "said": len(accepted)}), flush=True)
    control = remote_frame(60)
    stager.sendall(struct.pack("<H", len(control)) + control)

    def said():
        try:
            return exactly(stager, 1)
        except ConnectionError:
            raise Refused("closed") from None

    attempt("relay", "goes on in his place", "closed", said)
    victim.close()


def board():
    """Cuts off a file of his own pool that daemons and clients map, while root's stager copies out of the pool."""
    wire = Wire()
    task = wire.start(COPY, f"pool-{os.environ['SLURM_JOB_ID']}://", "nvme0://bob/of-pool", bandwidth=65536)
    time.sleep(1)
    boards = [os.path.join(path, "board") for path, _, names in os.walk("/mnt/nvme0") if "board" in names and os.stat(path).st_uid == BOB]
    for path in boards:
        os.truncate(path, 0)
    time.sleep(2)
    try:
        wire.about("cancel", task)
        wire.wait(task)
    except Refused as error:
        print(error, file=sys.stderr)
    said = f"{len(boards)} boards"
    print(json.dumps({"by": "board", "name": "ends the stager", "done": Wire().stager != wire.stager, "named": len(boards) > 0, "said": said}), flush=True)


def hangs_on(path):
    """Connections that announce a large message and never end it."""
    held = []
    for _ in range(300):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(0.2)
        held.append(connection)
        try:
            connection.connect(path)
            connection.sendall(struct.pack("<IHHQ", 8 << 20, 10, 0, 1) + bytes(1 << 16))
        except OSError:
            pass
    return held


def half_open(addresses, over):
    """A byte every second, of a good greeting, on as many connections as there may be."""
    message, held = remote_frame(6, struct.pack("<H", 2) + text(b"\0" * 48)), {}
    while not over.is_set():
        for key in [(address, number) for address in addresses for number in range(300)]:
            try:
                if key not in held:
                    held[key] = [socket.create_connection(key[0], timeout=2), 0]
                connection, at = held[key]
                connection.sendall(message[at : at + 1])
                held[key][1] = min(at + 1, len(message) - 2)
            except OSError:
                if connection := held.pop(key, None):
                    connection[0].close()
        over.wait(1)


def pool_ports():
    """Where daemons of hers listen on this node: the kernel tells everybody."""
    for line in open("/proc/net/tcp").read().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and int(words[7]) == ALICE:
            yield int(words[1].split(":")[1], 16)


def flood():
    """As much as he can ask for at once, until he is told to stop."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    wire, own = Wire(), []
    for number in range(8):
        own.append(wire.start(COPY, "lustre://bob/big", f"nvme0://bob/slow{number}", bandwidth=65536))

    def without_end():
        for number in range(3000):
            own.append(wire.start(COPY, "lustre://bob/in", f"nvme0://bob/flood/{number}", bandwidth=65536))
        return f"{len(own)} tasks"

    attempt("flood", "queues without end", "user-tasks-max", without_end)
    ports = list(pool_ports())
    addresses = [(node, 42000) for node in FACTS["nodes"]] + [(NODE, port) for port in ports]
    over = threading.Event()
    thread = threading.Thread(target=half_open, args=(addresses, over))
    thread.start()
    held = hangs_on(RUN + "user.socket") + hangs_on(RUN + "norns.socket")
    print(json.dumps({"by": "flood", "name": "is under way", "done": False, "named": bool(ports), "said": f"ports {ports}"}), flush=True)
    open(f"{FACTS['home']}/flood-{NODE}", "w").close()
    while not os.path.exists(f"{FACTS['home']}/stop"):
        time.sleep(0.2)
    over.set()
    thread.join()
    del held
    for id in own:
        try:
            Wire.about(wire, "cancel", id)
        except Refused:
            pass


for what in sys.argv[2:]:
    here = dict(zip(FACTS["nodes"], ("wire", "norns", "c", "python"))).get(NODE) if what == "by-node" else what
    if here in INTERFACES:
        through(INTERFACES[here]())
    else:
        globals()[here]()
    print(json.dumps({"by": here, "name": "end", "done": False, "named": True, "said": ""}), flush=True)
