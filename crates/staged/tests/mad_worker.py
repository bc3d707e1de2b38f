#!/usr/bin/env python3
"""Stands where a stager's own program was, so it is started as its workers. For the enemy it is one that has been taken over: it says
what it must not, changed, cut off and too much of it. For everybody else it becomes the real one. Beside it lie `real`, the stager's
program, and `enemy`, the number of a user; `harm` is made there when the supervisor gives out what is not this worker's."""

import os
import random
import socket
import struct
import sys

HERE = os.path.dirname(os.path.abspath(sys.argv[0]))
LARGE = [0, 1, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1]

pipe = socket.socket(fileno=os.dup(0))
# Left there for whoever this becomes. Descriptors come with it: those of a look are given back.
first, brought, _, _ = pipe.recvmsg(1 << 16, socket.CMSG_LEN(16), socket.MSG_PEEK)
for _, _, fds in brought:
    for (fd,) in struct.iter_unpack("i", fds):
        os.close(fd)
(node,) = struct.unpack_from("<I", first, 10)
(uid,) = struct.unpack_from("<I", first, 14 + node)
with open(f"{HERE}/enemy") as file:
    enemy = int(file.read())
if uid != enemy:
    os.execv(f"{HERE}/real", [f"{HERE}/real", "--worker"])

rng = random.Random(os.urandom(8))
own = []
visits = []
connections = []


def u64():
    return struct.pack("<Q", rng.choice(LARGE + [rng.getrandbits(64)]))


def text(data):
    return struct.pack("<I", len(data)) + data


def some_id():
    near = (own[-1] if own else 1) + rng.randrange(-3, 4)
    return struct.pack("<I", rng.choice([own[-1] if own else 0, near, 0, (1 << 32) - 1]) & 0xFFFFFFFF)


def one_of(known):
    near = (known[-1] if known else 1) + rng.randrange(-2, 3)
    return struct.pack("<Q", rng.choice([known[-1] if known else 0, near, near, (1 << 64) - 1]) & 0xFFFFFFFFFFFFFFFF)


def path():
    return text(rng.choice([b"copy", b"..", b"../outside/file", b"/etc", b"", b"a/b", b"\xff" * 9000, os.urandom(9)]))


def refusal():
    return struct.pack("<ii", rng.choice([0, 0, -1, -100, 7]), rng.randrange(-2, 140)) + text(b"x" * rng.choice([0, 9, 20000]))


def ended(which=None):
    numbers = b"".join(u64() for _ in range(4))
    return (which or some_id()) + bytes([rng.randrange(7)]) + refusal() + numbers


def message():
    host = rng.choice([b"n1", b"n2", b"127.0.0.1:9", b"", b"h" * 300, b"\xff"])
    said = {
        2: lambda: text(b"because"),
        3: ended,
        4: lambda: some_id() + path() + path(),
        5: lambda: some_id() + path() + u64(),
        6: lambda: u64() + some_id() + u64(),
        7: some_id,
        8: lambda: some_id() + bytes([rng.randrange(8)]) + b"".join(u64() for _ in range(4)) + b"\1" + u64() + b"\0\1\xff",
        9: lambda: u64() + struct.pack("<H", rng.randrange(20)) + text(os.urandom(rng.randrange(40))),
        10: lambda: u64() + struct.pack("<I", rng.choice([0, 1, 1 << 30])) + os.urandom(rng.randrange(60)),
        11: u64,
        12: lambda: u64() + some_id() + u64() + text(host) + struct.pack("<H", rng.choice([16, 17, 18, 60])) + text(os.urandom(rng.randrange(60))),
        13: lambda: u64() + one_of(visits) + u64(),
        14: lambda: one_of(visits) + rng.choice([b"\0", b"\1" + path()]),
        15: lambda: one_of(connections),
    }
    # What may be said of one's own is said more often: what comes after a lie is not heard.
    kind = rng.choice([4, 5, 6, 7, 8, 11, 11, 13, 14, rng.choice([2, 3, 9, 10, 12, 0, 15, 60000])])
    body = said.get(kind, lambda: os.urandom(rng.randrange(60)))()
    return frame(kind, body)


def frame(kind, body):
    return struct.pack("<IHBB", len(body), kind, 0, 0) + body


def changed(data):
    data = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data) + 1)
        if rng.randrange(3) == 0:
            del data[at:]
        elif rng.randrange(2) == 0:
            data[at:at] = os.urandom(rng.randrange(30))
        elif at < len(data):
            data[at] ^= 1 << rng.randrange(8)
    return bytes(data)


def speak():
    for _ in range(rng.randrange(12)):
        data = message()
        if rng.randrange(4) == 0:
            data = changed(data)
        pipe.sendall(data)
    what = rng.randrange(40)
    if what == 0:
        pipe.sendall(frame(9, os.urandom(2 << 20)))
    elif what == 1:
        # A long one of which nothing comes.
        pipe.sendall(struct.pack("<IHBB", 8 << 20, 9, 0, 0))
    elif what == 2:
        sys.exit(0)
    elif what == 3:
        os.kill(os.getpid(), 9)


def harm(what):
    with open(f"{HERE}/harm", "a") as file:
        file.write(what + "\n")


def obey(kind, body, fds):
    # Of the messages that are about a task only those about its own may bring anything.
    (number,) = struct.unpack_from("<I", body) if len(body) >= 4 else (0,)
    if kind == 2:
        own.append(number)
    elif kind == 6 and fds and number not in own:
        harm(f"the journal of task {number}")
    elif kind == 4 and number not in own:
        harm(f"noted for task {number}")
    elif kind == 12 and fds:
        harm("a connection to another stager")
    elif kind == 13:
        connection, visit = struct.unpack_from("<QQ", body)
        visits.append(visit)
        connections.append(connection)
        # Whoever is at the other end hears nonsense.
        if fds and rng.randrange(2) == 0:
            os.write(fds[0], os.urandom(rng.randrange(200)))


def serve():
    pipe.sendall(frame(1, b""))
    data, kept = b"", []
    while True:
        more, fds, _, _ = socket.recv_fds(pipe, 1 << 16, 64)
        if not more:
            return
        data, kept = data + more, kept + fds
        while len(data) >= 8:
            size, kind, count, _ = struct.unpack_from("<IHBB", data)
            if len(data) < 8 + size:
                break
            obey(kind, data[8 : 8 + size], kept[:count])
            for fd in kept[:count]:
                os.close(fd)
            data, kept = data[8 + size :], kept[count:]
        speak()
        # Most of its tasks end in some way.
        if own and rng.randrange(4) != 0:
            pipe.sendall(frame(3, ended(struct.pack("<I", own[-1]))))


try:
    serve()
except (BrokenPipeError, ConnectionResetError):
    pass
