"""What j3, j4 and j5 share: stagers of their own, nodes as network name spaces, clients that begin together."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import struct
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from harness import Failed

if TYPE_CHECKING:
    from harness import Setting

# As many as NORNS has by its own configuration.
WORKERS = 4
FILE_BYTES = 4096
PORT, ECHO_PORT, IPERF_PORT = 42000, 42001, 42002
IN_FLIGHT = (1, 16)


class Process:
    """A program that runs until the end of a `with`, and has said its first line."""

    def __init__(self, command: list[str], ready: bool = True, env: dict[str, str] | None = None) -> None:
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        assert self.child.stdout is not None
        if ready and not self.child.stdout.readline():
            self.child.wait()
            raise Failed(f"'{Path(command[0]).name}' did not start; its message is above")

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.kill()
        self.child.communicate()


class Stager:
    """`tidepool-staged` with the dataspaces a:// and b:// in the memory store, until the end of a `with`; b:// can be elsewhere."""

    def __init__(
        self,
        setting: Setting,
        prefix: list[str] | None = None,
        listen: str | None = None,
        b: Path | None = None,
        more: tuple[str, ...] = (),
    ) -> None:
        self.program = setting.command.with_name("tidepool-staged")
        if not self.program.is_file():
            raise Failed("there is no tidepool-staged beside the command; build the workspace")
        self.setting = setting
        self.dir = setting.memory.path / f"tidepool-experiment-{os.getpid()}"
        self.prefix, self.listen, self.more = prefix or [], listen, more
        self.mounts = {"a": self.dir / "a", "b": b or self.dir / "b"}

    def __enter__(self) -> Stager:
        self.dir.mkdir()
        make_spaces(self.dir)
        self.secret.write_text(secrets.token_hex(32))
        self.secret.chmod(0o600)
        lines = [f"workers = {WORKERS}", *self.more, f'norns-socket = "{self.dir}/norns.socket"']
        if self.listen:
            lines += [f'listen = "{self.listen}"', f'secret-file = "{self.secret}"']
        for name, mount in self.mounts.items():
            lines += ["[[dataspace]]", f'name = "{name}://"', 'kind = "local"', f'mount = "{mount}"']
        config = self.dir / "stager.toml"
        config.write_text("\n".join(lines) + "\n")
        command = [*self.prefix, str(self.program), "--config", str(config), "--dir", str(self.dir / "run")]
        try:
            self.process = Process(command)
        except Failed:
            shutil.rmtree(self.dir)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.__exit__()
        shutil.rmtree(self.dir)

    def admit(self, pid: int) -> None:
        """Lets a process and its children submit through the user socket, as those of a job."""
        job = ["register", "1", "--host", "n0", "--limit", "a://", "--limit", "b://"]
        for words in (job, ["add-process", "1", str(pid)]):
            command = [str(self.setting.command), "stage", "job", *words]
            self.setting.capture([*command, "--socket", f"{self.dir}/run/control.socket"])

    @property
    def secret(self) -> Path:
        return self.dir / "secret"

    def norns_config(self, compatible: bool) -> Path:
        """A configuration for libnorns: for the one of this project, or for that of NORNS itself."""
        user, control = ("norns", "norns") if compatible else ("run/user", "run/control")
        path = self.dir / "norns.conf"
        sockets = f'global_socket: "{self.dir}/{user}.socket", control_socket: "{self.dir}/{control}.socket"'
        path.write_text(f"global_settings: [ {sockets} ]\n")
        return path


def make_spaces(at: Path) -> None:
    for name in "ab":
        (at / name).mkdir()
    (at / "a" / "file").write_bytes(b"7" * FILE_BYTES)


class Net:
    """A node with a stager and others that reach it, each over a link of its own: network name spaces where that is
    permitted, else all on the loopback. `here[i]` is the stager's address as node i reaches it."""

    def __init__(self, setting: Setting, nodes: int) -> None:
        self.name = f"tpx{os.getpid()}"
        self.spaces = [f"{self.name}-{n}" for n in range(nodes + 1)]
        self.real = os.geteuid() == 0 and run_quietly("ip", "netns", "add", self.spaces[0])
        self.nodes = nodes
        if self.real:
            self.here = [f"10.78.{n + 1}.1" for n in range(nodes)]
            setting.steps.add("nodes are network name spaces of this machine, each joined to the stager's by a veth pair")
        else:
            self.here = ["127.0.0.1"] * nodes
            setting.steps.add("network name spaces are not permitted here: all nodes are the loopback interface")

    def __enter__(self) -> Net:
        if self.real:
            try:
                for number in range(self.nodes):
                    self.link(number)
            except Failed:
                self.__exit__()
                raise
        return self

    def link(self, number: int) -> None:
        server, client = self.spaces[0], self.spaces[number + 1]
        ours, theirs = f"tpx{number}", "tpx"
        ip("netns", "add", client)
        ip("link", "add", ours, "netns", server, "type", "veth", "peer", "name", theirs, "netns", client)
        for space, name, last in ((server, ours, 1), (client, theirs, 2)):
            ip("-n", space, "addr", "add", f"10.78.{number + 1}.{last}/24", "dev", name)
            ip("-n", space, "link", "set", name, "up")
            ip("-n", space, "link", "set", "lo", "up")

    def shape(self, mbit: int) -> bool:
        """Limits all links to a rate in both directions; false where that is not possible."""
        words = ["root", "tbf", "rate", f"{mbit}mbit", "burst", "1mb", "latency", "50ms"]
        ends = [(self.spaces[0], f"tpx{n}") for n in range(self.nodes)] + [(space, "tpx") for space in self.spaces[1:]]
        return self.real and all(run_quietly("tc", "-n", s, "qdisc", "add", "dev", dev, *words) for s, dev in ends)

    def __exit__(self, *_: object) -> None:
        for space in self.spaces if self.real else []:
            run_quietly("ip", "netns", "del", space)

    def server(self) -> list[str]:
        """What runs a program at the stager's node."""
        return ["ip", "netns", "exec", self.spaces[0]] if self.real else []

    def client(self, node: int) -> list[str]:
        return ["ip", "netns", "exec", self.spaces[node + 1]] if self.real else []


def run_quietly(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"'ip {' '.join(words)}': {done.stderr.strip()}")


class Together:
    """What clients that began at once did: `bench remote-client` in each of some nodes."""

    def __init__(self, setting: Setting, net: Net, stager: Stager, clients: int, *words: str, port: int = PORT) -> None:
        times = [setting.work / f"times{rank}" for rank in range(clients)]
        secret = [] if "plain" in words else ["--secret", str(stager.secret)]
        children: list[subprocess.Popen] = []
        try:
            for rank in range(clients):
                node = rank % net.nodes
                command = [*net.client(node), str(setting.command), "bench", "remote-client", *secret, *words]
                command += ["--address", f"{net.here[node]}:{port}", "--rank", str(rank), "--times", str(times[rank])]
                children.append(
                    subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                )
            told = begin_together(children)
        finally:
            for child in children:
                child.kill()
                child.wait()
        self.seconds = (max(t["ended"] for t in told) - min(t["began"] for t in told)) / 1e9
        self.times = sorted(t for path in times for (t,) in struct.iter_unpack("<Q", path.read_bytes()))

    def per_second(self) -> float:
        return len(self.times) / self.seconds

    def p50_us(self) -> float:
        return self.times[len(self.times) // 2] / 1000


def begin_together(children: list[subprocess.Popen]) -> list[dict]:
    for child in children:
        if child.stdout.readline().strip() != "ready":
            raise Failed("a client did not start; its message is above")
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    lines = [child.stdout.readline() for child in children]
    if not all(lines):
        raise Failed("a client failed; its message is above")
    return [json.loads(line) for line in lines]
