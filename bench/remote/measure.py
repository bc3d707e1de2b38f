#!/usr/bin/python3
"""Measures copies between nodes beside iperf3 and rsync, in network name spaces of this machine.

    measure.py --program target/release/examples/remote_end [--files 20000] [--repeats 3] [--out bench/runs]

Needs root, iperf3, rsync. Prints CSV: link, what, tool, round, value, unit; medians and ratios at the end. All files are in memory.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
A, B = "tpbench-a", "tpbench-b"
NEAR, FAR = "10.77.0.1", "10.77.0.2"
PORT, RSYNC_PORT = 7700, 8730
GIB = 1 << 30


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.work = Path("/dev/shm") / f"tpbench-{os.getpid()}"
        self.environment = dict(os.environ, TIDEPOOL_REMOTE_SECRET=secrets.token_hex(32))
        self.rows: list[dict[str, object]] = []
        self.children: list[subprocess.Popen] = []
        self.link = ""

    def inside(self, namespace: str, *command: str) -> list[str]:
        return ["ip", "netns", "exec", namespace, *command]

    def start(self, command: list[str], wait_for_line: bool = False) -> None:
        pipe = subprocess.PIPE if wait_for_line else subprocess.DEVNULL
        child = subprocess.Popen(
            command, env=self.environment, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self.children.append(child)
        if wait_for_line:
            assert child.stdout is not None and child.stdout.readline(), f"{command} ended"

    def run(self, command: list[str]) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{command}: {done.stdout}{done.stderr}")
        return done.stdout

    def add(self, what: str, tool: str, number: int, value: float, unit: str) -> None:
        row = {"link": self.link, "what": what, "tool": tool, "round": number, "value": round(value, 4), "unit": unit}
        self.rows.append(row)
        print(*row.values(), sep=",", flush=True)

    def median(self, what: str, tool: str) -> float:
        rows = [r for r in self.rows if (r["link"], r["what"], r["tool"]) == (self.link, what, tool)]
        return statistics.median(float(str(r["value"])) for r in rows)

    def close(self) -> None:
        for child in reversed(self.children):
            os.killpg(child.pid, signal.SIGTERM)
            child.wait()
        self.children.clear()
        for namespace in (A, B):
            subprocess.run(["ip", "netns", "del", namespace], stderr=subprocess.DEVNULL, check=False)

    def open(self, link: str, mbit: int, delay_ms: float) -> None:
        self.close()
        self.link = link
        for namespace in (A, B):
            self.run(["ip", "netns", "add", namespace])
            self.run(["ip", "-n", namespace, "link", "set", "lo", "up"])
        if delay_ms:
            words = [A, NEAR, B, FAR, str(mbit), str(delay_ms)]
            self.start([sys.executable, str(HERE / "link.py"), *words], wait_for_line=True)
        else:
            self.veth(mbit)
        program = str(self.args.program)
        served = self.work / "served"
        served.mkdir(parents=True, exist_ok=True)
        self.start(self.inside(B, program, "serve", f"{FAR}:{PORT}", str(served)), wait_for_line=True)
        self.start(self.inside(B, "iperf3", "-s", "-B", FAR))
        config = self.work / "rsyncd.conf"
        config.write_text(f"uid = 0\ngid = 0\nuse chroot = no\n[m]\npath = {served}\nread only = no\n")
        rsync = ["rsync", "--daemon", f"--config={config}", f"--port={RSYNC_PORT}", "--address", FAR, "--no-detach"]
        self.start(self.inside(B, *rsync))
        time.sleep(0.5)

    def veth(self, mbit: int) -> None:
        self.run(["ip", "link", "add", "tpa", "netns", A, "type", "veth", "peer", "name", "tpb", "netns", B])
        for namespace, name, address in ((A, "tpa", NEAR), (B, "tpb", FAR)):
            self.run(["ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", name])
            self.run(["ip", "-n", namespace, "link", "set", name, "up"])
            if mbit:
                shape = ["tbf", "rate", f"{mbit}mbit", "burst", "1mb", "latency", "50ms"]
                self.run(self.inside(namespace, "tc", "qdisc", "add", "dev", name, "root", *shape))

    def program(self, *words: str) -> dict[str, str]:
        out = self.run(self.inside(A, str(self.args.program), *words))
        return dict(word.split("=", 1) for word in out.split())

    def latency(self) -> None:
        count = "20000" if self.link == "veth" else "400"
        for number in range(self.args.repeats):
            for inflight in (1, 16):
                seen = self.program("ping", f"{FAR}:{PORT}", count, f"inflight={inflight}", "streams=16")
                for name, unit in (("p50_us", "us"), ("p99_us", "us"), ("per_s", "1/s")):
                    self.add(f"ping {name[:3]}", f"{inflight} in flight", number, float(seen[name]), unit)
        rates = [self.median("ping per", f"{n} in flight") for n in (1, 16)]
        p50 = self.median("ping p50", "1 in flight")
        print(f"# {self.link}: one by one p50 {p50:.1f} us; requests/s: 1 in flight {rates[0]:.0f}, 16 {rates[1]:.0f}")

    def bandwidth(self, byte_count: int) -> None:
        address = f"{FAR}:{PORT}"
        # Makes the file, so that taking pages for it is not measured.
        self.program("push", address, str(byte_count))
        for number in range(self.args.repeats):
            for what, reverse in (("push", []), ("pull", ["-R"])):
                out = self.run(self.inside(A, "iperf3", "-c", FAR, "-f", "m", "-n", str(byte_count), *reverse))
                rate = re.search(r"([\d.]+) Mbits/sec\s+receiver", out)
                assert rate, out
                self.add(what, "iperf3", number, float(rate[1]), "Mbit/s")
                for inflight in (1, 16):
                    words = (what, address, str(byte_count), f"inflight={inflight}", "streams=16")
                    self.add(what, f"{inflight} in flight", number, float(self.program(*words)["mbit_s"]), "Mbit/s")
        for what in ("push", "pull"):
            iperf, one, many = (self.median(what, t) for t in ("iperf3", "1 in flight", "16 in flight"))
            print(f"# {self.link}: {what}: 1 in flight {one / iperf:.2f}, 16 in flight {many / iperf:.2f} of iperf3")
        (self.work / "served" / "bandwidth").unlink()

    def tree(self, count: int, size: int) -> Path:
        tree = self.work / f"{count}x{size}"
        if not tree.exists():
            for number in range(count):
                directory = tree / f"{number // 200:04}"
                directory.mkdir(parents=True, exist_ok=True)
                (directory / f"{number:06}").write_bytes(os.urandom(size))
        return tree

    def small_files(self, count: int, size: int) -> None:
        tree, there, back = self.tree(count, size), self.work / "served" / "tree", self.work / "back"
        address, what = f"tcp:{FAR}:{PORT}/tree", f"{count} files of {size} bytes"
        program, mirror = str(self.args.program), f"rsync://{FAR}:{RSYNC_PORT}/m/tree/"
        for number in range(self.args.repeats):
            for way, tool, command in (
                ("there", "tidepool", [program, "copy", str(tree), address]),
                ("there", "rsync", ["rsync", "-a", f"{tree}/", mirror]),
                ("back", "tidepool", [program, "copy", address, str(back)]),
                ("back", "rsync", ["rsync", "-a", mirror, str(back)]),
            ):
                shutil.rmtree(there if way == "there" else back, ignore_errors=True)
                start = time.monotonic()
                self.run(self.inside(A, *command))
                self.add(f"{what} {way}", tool, number, time.monotonic() - start, "s")
        same = subprocess.run(["diff", "-rq", str(tree), str(back)], check=False)
        assert same.returncode == 0, "the copies differ"
        for way in ("there", "back"):
            rsync, ours = (self.median(f"{what} {way}", tool) for tool in ("rsync", "tidepool"))
            print(f"# {self.link}: {what} {way}: rsync {rsync:.2f} s, tidepool {ours:.2f} s, ratio {rsync / ours:.2f}")
        for path in (there, back):
            shutil.rmtree(path, ignore_errors=True)

    def save(self) -> Path:
        out = Path(self.args.out) / f"bench-remote-{int(time.time() * 1000)}.csv"
        with out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(self.rows[0]))
            writer.writeheader()
            writer.writerows(self.rows)
        return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True, help="the built example remote_end")
    parser.add_argument("--files", type=int, default=20000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--links", default="veth,1gbit,delayed")
    parser.add_argument("--out", default=str(HERE.parent / "runs"))
    args = parser.parse_args()
    args.program = args.program.resolve()
    bench = Bench(args)
    bench.work.mkdir(parents=True)
    try:
        if "veth" in args.links:
            bench.open("veth", 0, 0)
            bench.latency()
            bench.bandwidth(2 * GIB)
            bench.small_files(args.files, 4096)
        if "1gbit" in args.links:
            bench.open("veth 1 Gbit/s", 1000, 0)
            bench.bandwidth(GIB // 2)
            bench.small_files(args.files, 4096)
        if "delayed" in args.links:
            bench.open("1 Gbit/s 5 ms", 1000, 5)
            bench.latency()
            bench.bandwidth(GIB)
            for size in (0, 1024, 4096):
                bench.small_files(args.files, size)
        print("#", bench.save().name)
    finally:
        bench.close()
        shutil.rmtree(bench.work, ignore_errors=True)


if __name__ == "__main__":
    main()
