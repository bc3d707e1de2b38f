"""What a10 and a13 share: nodes as network name spaces on leaf switches, with devices and switches of given speeds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness import Failed
from stagers import begin_together, ip, run_quietly

if TYPE_CHECKING:
    from harness import Setting

MOVER = Path(__file__).resolve().parent / "mover.py"
POOL = "experiment"
NODES_MAX = 250
# A queue that holds what comes while the line is busy, and what may go at once: little beside what is moved.
BURST, QUEUE_MS = "256kb", 100
# How long agents of other nodes may take to end after the pool.
PATIENCE_S = 30
# Makes a name space a node: boot id, names of hosts, and the directory that is its own.
ON = """#!/bin/sh
place=$1
shift
export DIR='{dir}' NODE=n${{place#?}}
exec ip netns exec {name}-$place sh -c '
mount --bind "$DIR/boot-$NODE" /proc/sys/kernel/random/boot_id &&
mount --bind "$DIR/hosts" /etc/hosts &&
mount --bind "$DIR/$NODE" "$DIR/here" || exit 125
eval "exec $0"' "$*"
"""


def permitted() -> bool:
    """Whether name spaces and bridges may be made here."""
    probe = f"tpsw{os.getpid()}-probe"
    if os.geteuid() != 0 or not run_quietly("ip", "netns", "add", probe):
        return False
    works = run_quietly("ip", "-n", probe, "link", "add", "bridge0", "type", "bridge")
    run_quietly("ip", "netns", "del", probe)
    return works


class Fabric:
    """Leaf switches, each with the same number of nodes, and a core switch that joins them, until the end of a `with`.

    A node is two name spaces on its leaf, with one boot id and one directory: in one its daemon, behind a link that
    stands for its device, in the other its programs, which use TCP. So all that the daemon keeps passes that link, also
    what programs of its own node write."""

    def __init__(self, setting: Setting, leaves: int, per_leaf: int) -> None:
        assert leaves * per_leaf <= NODES_MAX
        self.setting, self.leaves, self.per_leaf = setting, leaves, per_leaf
        self.name = f"tpsw{os.getpid()}"
        self.switches = f"{self.name}-switches"
        self.nodes = range(1, leaves * per_leaf + 1)
        self.dir = setting.memory.path / f"tidepool-experiment-{os.getpid()}"
        setting.steps.add(
            "nodes are network name spaces of this machine, two for each: its daemon behind a link that stands for its "
            "device (tc tbf), and its programs, which use TCP; a new pool on empty stores in memory for each measurement, no "
            "caches to be dropped"
        )

    def __enter__(self) -> Fabric:
        try:
            self.build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def build(self) -> None:
        self.dir.mkdir()
        ip("netns", "add", self.switches)
        for bridge in ["core1", *(f"leaf{leaf}" for leaf in range(1, self.leaves + 1))]:
            ip("-n", self.switches, "link", "add", bridge, "type", "bridge")
            ip("-n", self.switches, "link", "set", bridge, "up")
        for leaf in range(1, self.leaves + 1):
            ip("-n", self.switches, "link", "add", f"up{leaf}", "type", "veth", "peer", "name", f"down{leaf}")
            ip("-n", self.switches, "link", "set", f"up{leaf}", "master", f"leaf{leaf}", "up")
            ip("-n", self.switches, "link", "set", f"down{leaf}", "master", "core1", "up")
        for node in self.nodes:
            self.attach(f"n{node}", node, f"10.81.0.{node}/16")
            self.attach(f"p{node}", node, f"10.81.1.{node}/16")
        self.write_files()

    def attach(self, place: str, node: int, address: str) -> None:
        space = f"{self.name}-{place}"
        ip("netns", "add", space)
        ip("-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", place, "netns", self.switches)
        ip("-n", self.switches, "link", "set", place, "master", f"leaf{self.leaf_of(node)}", "up")
        ip("-n", space, "addr", "add", address, "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", space, "link", "set", device, "up")

    def write_files(self) -> None:
        names = ["127.0.0.1 localhost", *(f"10.81.0.{node} n{node}" for node in self.nodes)]
        (self.dir / "hosts").write_text("\n".join(names) + "\n")
        for node in self.nodes:
            (self.dir / f"n{node}").mkdir()
            (self.dir / f"boot-n{node}").write_text(f"5a17ab1e-0000-4000-8000-{node:012}\n")
        (self.dir / "here").mkdir()
        (self.dir / "switches.toml").write_text(topology(self.leaves, self.per_leaf, 1, 10.0, 10.0))
        (self.dir / "on").write_text(ON.format(dir=self.dir, name=self.name))
        (self.dir / "on").chmod(0o755)

    def __exit__(self, *_: object) -> None:
        places = [f"{kind}{node}" for node in self.nodes for kind in "np"]
        for space in [*(f"{self.name}-{place}" for place in places), self.switches]:
            for pid in pids(space):
                run_quietly("kill", "-9", pid)
            run_quietly("ip", "netns", "del", space)
        shutil.rmtree(self.dir, ignore_errors=True)

    def leaf_of(self, node: int) -> int:
        return (node - 1) // self.per_leaf + 1

    def shape_devices(self, write_mbit: float, read_mbit: float) -> None:
        for node in self.nodes:
            self.limit(self.switches, f"n{node}", write_mbit)
            self.limit(f"{self.name}-n{node}", "eth0", read_mbit)

    def shape_core(self, mbit: float) -> None:
        """The way of each leaf to the core and back."""
        for leaf in range(1, self.leaves + 1):
            for end in ("up", "down"):
                self.limit(self.switches, f"{end}{leaf}", mbit)

    def limit(self, space: str, device: str, mbit: float) -> None:
        words = ["root", "tbf", "rate", f"{round(mbit * 1000)}kbit", "burst", BURST, "latency", f"{QUEUE_MS}ms"]
        if not run_quietly("tc", "-n", space, "qdisc", "replace", "dev", device, *words):
            raise Failed("'tc' cannot limit a link's rate here (package iproute2, kernel option NET_SCH_TBF)")

    def core_bytes(self) -> int:
        """What has passed the ways of the leaves up and down, in both directions; each byte between two leaves twice."""
        files = [
            f"/sys/class/net/up{leaf}/statistics/{way}_bytes"
            for leaf in range(1, self.leaves + 1)
            for way in ("rx", "tx")
        ]
        told = self.setting.capture(["ip", "netns", "exec", self.switches, "cat", *files])
        return sum(map(int, told.split()))

    def environment(self) -> dict[str, str]:
        here = self.dir / "here"
        ours = {"TIDEPOOL_RUNTIME": f"{here}/rt", "TIDEPOOL_STORE": f"{here}/store", "TIDEPOOL_TRANSPORT": "tcp"}
        return self.setting.environment() | ours | {"XDG_STATE_HOME": f"{here}/state", "TIDEPOOL_SSH": f"{self.dir}/on"}

    def command(self, node: int, *words: str) -> list[str]:
        """`tidepool` where the programs of a node are."""
        return [str(self.dir / "on"), f"p{node}", f"'{self.setting.command}'", *words]

    def tidepool(self, node: int, *words: str) -> str:
        return self.setting.capture(self.command(node, *words), self.environment())


class SwitchedPool:
    """A pool over some nodes of a fabric until the end of a `with`."""

    def __init__(self, fabric: Fabric, nodes: list[int], placement: str, *switches: str) -> None:
        self.fabric, self.nodes, self.switches = fabric, nodes, ["--placement", placement, *switches]

    def __enter__(self) -> SwitchedPool:
        hosts = ",".join(f"n{node}" for node in self.nodes)
        words = ["pool", "start", "--name", POOL, "--hosts", hosts, "--client", "preload"]
        words += self.switches
        self.fabric.setting.note(["tidepool", *words, "--topology", "switches.toml"])
        self.fabric.tidepool(1, *words, "--topology", str(self.fabric.dir / "switches.toml"))
        return self

    def __exit__(self, *_: object) -> None:
        self.fabric.tidepool(1, "pool", "stop", "--pool", POOL)
        deadline = time.monotonic() + PATIENCE_S
        spaces = [f"{self.fabric.name}-n{node}" for node in self.nodes]
        while any(pids(space) for space in spaces):
            if time.monotonic() > deadline:
                raise Failed("agents of the pool's nodes do not end")
            time.sleep(0.02)

    def move(self, what: str, byte_count: int) -> Moved:
        """Has a program at each node write or read a file of its own; all begin together."""
        environment = self.fabric.environment()
        children: list[subprocess.Popen] = []
        before = self.fabric.core_bytes()
        try:
            for node in self.nodes:
                mover = [sys.executable, str(MOVER), what, f"file{node}", str(byte_count)]
                words = ["exec", "--pool", POOL, "--client", "preload", "--", *mover]
                pipe = subprocess.PIPE
                command = self.fabric.command(node, *words)
                children.append(subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True))
            told = begin_together(children)
            for child in children:
                child.communicate()
        finally:
            for child in children:
                child.kill()
                child.wait()
        return Moved(byte_count, told, self.fabric.core_bytes() - before)


class Moved:
    """What programs that began together did. In MB/s, as makers of devices count."""

    def __init__(self, each: int, told: list[dict], core_bytes: int) -> None:
        total = each * len(told)
        self.rate = total / (max(t["ended"] for t in told) - min(t["began"] for t in told)) * 1e3
        self.core_share = core_bytes / total


def pids(space: str) -> list[str]:
    done = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=False)
    return done.stdout.split()


def topology(leaves: int, per_leaf: int, cores: int, node_gbit: float, link_gbit: float) -> str:
    """A topology file: one link from each leaf to each core switch."""
    parts = []
    for leaf in range(leaves):
        hosts = f"n[{leaf * per_leaf + 1}-{(leaf + 1) * per_leaf}]"
        parts.append(f'[[switch]]\nname = "leaf{leaf + 1}"\nhosts = "{hosts}"\ngigabits-per-second = {node_gbit:g}\n')
    for core in range(cores):
        below = f'switches = "leaf[1-{leaves}]"\ngigabits-per-second = {link_gbit:g}\n'
        parts.append(f'[[switch]]\nname = "core{core + 1}"\n{below}')
    return "\n".join(parts)


def flow(setting: Setting, file: Path, device_write: float, cores_off: str, pools: bool) -> dict:
    """What the model of flows tells; see docs/guide/topology.md."""
    command = [str(setting.command), "topology", "flow", "--topology", str(file), "--json"]
    command += ["--device-write", f"{round(device_write)}"]
    command += [*(["--off", cores_off] if cores_off else []), *(["--pools", "leaf"] if pools else [])]
    setting.note([*command[:4], file.name, *command[5:]])
    told = json.loads(setting.capture(command))
    if told["label"] != "model, not measured":
        raise Failed(f"the model calls itself '{told['label']}'")
    return told
