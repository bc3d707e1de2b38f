"""An ordinary program that does to files what it is told on standard input, one thing at a time.

A request is a line of words; `write` and the like are followed by as many bytes as they say. The answer is
`ok N` and N bytes, or `err ERRNO TEXT`. `KNOWN_BYTES_LIE=N`: each N-th write is acknowledged and not done, so that
a test can show that it would be noticed.
"""

import ctypes
import mmap
import os
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
KEEP_SIZE, PUNCH_HOLE = 1, 2
LIE = int(os.environ.get("KNOWN_BYTES_LIE", "0"))

root = sys.argv[1]
handles = {}
writes = 0


def path(name):
    return os.path.join(root, name)


def opened(key, name, flags):
    """A descriptor that is kept for the file `key`; the name is looked up the first time only."""
    if (key, flags) not in handles:
        handles[key, flags] = os.open(path(name), flags)
    return handles[key, flags]


def borrowed(how, key, name, flags):
    """The descriptor, and whether it is to be closed."""
    if how == "kept":
        return opened(key, name, flags), False
    return os.open(path(name), flags), True


def write_whole(fd, data, at):
    done = 0
    while done < len(data):
        count = os.pwrite(fd, data[done:], at + done)
        assert count > 0, count
        done += count


def read_whole(fd, at, length):
    data = b""
    while len(data) < length:
        part = os.pread(fd, length - len(data), at + len(data))
        if not part:
            break
        data += part
    return data


def read(how, key, name, at, length):
    if how == "map":
        fd = os.open(path(name), os.O_RDONLY)
        try:
            begin = at - at % mmap.PAGESIZE
            with mmap.mmap(fd, at + length - begin, mmap.MAP_SHARED, mmap.PROT_READ, offset=begin) as pages:
                return pages[at - begin :]
        finally:
            os.close(fd)
    fd, close = borrowed(how, key, name, os.O_RDONLY)
    try:
        return read_whole(fd, at, length)
    finally:
        if close:
            os.close(fd)


def write(how, key, name, at, data):
    if how == "map":
        fd = os.open(path(name), os.O_RDWR)
        try:
            begin = at - at % mmap.PAGESIZE
            with mmap.mmap(fd, at + len(data) - begin, offset=begin) as pages:
                pages[at - begin : at - begin + len(data)] = data
                pages.flush()
        finally:
            os.close(fd)
        return
    fd, close = borrowed(how, key, name, os.O_WRONLY if how != "both" else os.O_RDWR)
    try:
        write_whole(fd, data, at)
        if how == "synced":
            os.fsync(fd)
    finally:
        if close:
            os.close(fd)


def append(name, data):
    fd = os.open(path(name), os.O_WRONLY | os.O_APPEND)
    try:
        done = 0
        while done < len(data):
            done += os.write(fd, data[done:])
    finally:
        os.close(fd)


def punch(name, at, length):
    fd = os.open(path(name), os.O_RDWR)
    try:
        arguments = ctypes.c_int(fd), ctypes.c_int(KEEP_SIZE | PUNCH_HOLE), ctypes.c_long(at), ctypes.c_long(length)
        if LIBC.fallocate(*arguments):
            raise OSError(ctypes.get_errno(), "fallocate")
    finally:
        os.close(fd)


def truncate(how, key, name, size):
    if how == "path":
        os.truncate(path(name), size)
    else:
        os.ftruncate(opened(key, name, os.O_WRONLY), size)


def rewrite(name, data):
    """As a shell's `>` does it."""
    fd = os.open(path(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        write_whole(fd, data, 0)
    finally:
        os.close(fd)


def replace(name, temporary, data):
    """As editors and package managers save a file."""
    fd = os.open(path(temporary), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        write_whole(fd, data, 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(path(temporary), path(name))


def remake(name, data):
    os.unlink(path(name))
    fd = os.open(path(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        write_whole(fd, data, 0)
    finally:
        os.close(fd)


def forget(key):
    for kept in [kept for kept in handles if kept[0] == key]:
        os.close(handles.pop(kept))


def names():
    return "\n".join(sorted(os.listdir(root))).encode()


def sizes(key, name):
    """By name, by descriptor, and where the end is."""
    fd = opened(key, name, os.O_RDONLY)
    return b"%d %d %d" % (os.stat(path(name)).st_size, os.fstat(fd).st_size, os.lseek(fd, 0, os.SEEK_END))


def lies():
    global writes
    writes += 1
    return LIE and writes % LIE == 0


def obey(words):
    match words:
        case ["read", how, key, name, at, length]:
            return read(how, key, name, int(at), int(length))
        case ["write", how, key, name, at, length]:
            data = sys.stdin.buffer.read(int(length))
            if not lies():
                write(how, key, name, int(at), data)
        case ["append", name, length]:
            append(name, sys.stdin.buffer.read(int(length)))
        case ["rewrite", name, length]:
            rewrite(name, sys.stdin.buffer.read(int(length)))
        case ["replace", name, temporary, length]:
            replace(name, temporary, sys.stdin.buffer.read(int(length)))
        case ["remake", name, length]:
            remake(name, sys.stdin.buffer.read(int(length)))
        case ["punch", name, at, length]:
            punch(name, int(at), int(length))
        case ["truncate", how, key, name, size]:
            truncate(how, key, name, int(size))
        case ["sizes", key, name]:
            return sizes(key, name)
        case ["names"]:
            return names()
        case ["forget", key]:
            forget(key)
        case _:
            raise SystemExit(f"unknown request {words}")
    return b""


for line in sys.stdin.buffer:
    try:
        answer = obey(line.decode().split())
        sys.stdout.buffer.write(b"ok %d\n" % len(answer) + answer)
    except OSError as error:
        sys.stdout.buffer.write(f"err {error.errno} {error.strerror}\n".encode())
    sys.stdout.buffer.flush()
