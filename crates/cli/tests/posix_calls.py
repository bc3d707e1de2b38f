"""What calls do on a file system, one line each, in the directory given. posix.rs runs it as root on ext4 and on a
mount and compares the lines: it covers what pjdfstest leaves out."""

import ctypes
import errno
import itertools
import mmap
import os
import shutil
import socket
import stat
import subprocess
import sys
import time

KEEP_SIZE, PUNCH_HOLE, COLLAPSE, ZERO_RANGE, INSERT = 1, 2, 8, 16, 32
NOREPLACE, EXCHANGE = 1, 2
# Longer than the coarsest tick of a kernel's clock.
NAP = 0.02

libc = ctypes.CDLL(None, use_errno=True)


def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def fallocate(fd, mode, offset, length):
    return checked(libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)))


def renameat2(old, new, flags):
    return checked(libc.renameat2(-100, old.encode(), -100, new.encode(), flags))


def outcome(call):
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno]


def show(name, call):
    print(name, outcome(call))


def as_user(uid, call):
    """The outcome of a call by somebody without other groups."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "crashed"
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            said = str(outcome(call))
        finally:
            os.write(writer, said.encode())
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader) as answers:
        return answers.read()


def make(path, mode=0o666, owner=0, content=b"0123456789"):
    with open(path, "wb") as file:
        file.write(content)
    os.chown(path, owner, owner)
    os.chmod(path, mode)


def with_fd(path, flags, call):
    fd = os.open(path, flags)
    try:
        return call(fd)
    finally:
        os.close(fd)


def write_mapped(fd):
    with mmap.mmap(fd, 0) as memory:
        memory[0:1] = b"m"
        memory.flush()


def set_id_bits():
    """Which calls by whom take set-ID bits away."""
    changes = {
        "write": lambda path: with_fd(path, os.O_WRONLY, lambda fd: os.write(fd, b"z")),
        "write nothing": lambda path: with_fd(path, os.O_WRONLY, lambda fd: os.write(fd, b"")),
        "append": lambda path: with_fd(path, os.O_WRONLY | os.O_APPEND, lambda fd: os.write(fd, b"z")),
        "truncate": lambda path: os.truncate(path, 3),
        "ftruncate": lambda path: with_fd(path, os.O_WRONLY, lambda fd: os.ftruncate(fd, 3)),
        "open to truncate": lambda path: with_fd(path, os.O_WRONLY | os.O_TRUNC, lambda fd: None),
        "fallocate": lambda path: with_fd(path, os.O_WRONLY, lambda fd: fallocate(fd, 0, 0, 100)),
        "punch": lambda path: with_fd(path, os.O_WRONLY, lambda fd: fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 0, 5)),
        "map": lambda path: with_fd(path, os.O_RDWR, write_mapped),
        "copy": lambda path: with_fd(path, os.O_RDWR, lambda fd: os.copy_file_range(fd, fd, 3, 0, 5)),
        "chown to owner": lambda path: os.chown(path, 1, -1),
        "chown to group": lambda path: os.chown(path, -1, 1),
        "utime": lambda path: os.utime(path),
        "setxattr": lambda path: os.setxattr(path, "user.a", b"1"),
    }
    # Set-group-ID without group execution is not among them: what becomes of it changed in Linux 6.2.
    modes = [0o6777, 0o2777, 0o4666]
    users = {"other": 2, "owner": 1, "root": 0}
    for change, mode, user in itertools.product(changes, modes, users):
        make("open/set-id", mode, owner=1)
        done = as_user(users[user], lambda: changes[change]("open/set-id"))
        print(f"{change} by {user}, {mode:o}:", done, oct(os.stat("open/set-id").st_mode))


def times():
    """Which calls change mtime and ctime, of what."""

    def of(path):
        found = os.lstat(path)
        return found.st_mtime_ns, found.st_ctime_ns

    def changed(name, paths, call):
        before = [of(path) for path in paths]
        time.sleep(NAP)
        done = outcome(call)
        after = [of(path) for path in paths]
        marks = [("m" * (a[0] != b[0]) + "c" * (a[1] != b[1])) or "-" for a, b in zip(before, after)]
        print(f"times of {name}:", done, *marks)

    for folder in ["from", "to"]:
        os.mkdir(folder)
    make("f")
    make("from/g")
    fd = os.open("f", os.O_RDWR)
    changed("write", ["f"], lambda: os.pwrite(fd, b"a", 0))
    changed("write nothing", ["f"], lambda: os.pwrite(fd, b"", 0))
    changed("ftruncate to the same", ["f"], lambda: os.ftruncate(fd, 10))
    changed("truncate to the same", ["f"], lambda: os.truncate("f", 10))
    changed("open to truncate", ["f"], lambda: os.close(os.open("f", os.O_WRONLY | os.O_TRUNC)))
    changed("open to truncate nothing", ["f"], lambda: os.close(os.open("f", os.O_WRONLY | os.O_TRUNC)))
    changed("fallocate beyond", ["f"], lambda: fallocate(fd, 0, 0, 100))
    changed("fallocate inside", ["f"], lambda: fallocate(fd, 0, 0, 50))
    changed("reserve", ["f"], lambda: fallocate(fd, KEEP_SIZE, 0, 500))
    changed("punch", ["f"], lambda: fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 0, 5))
    changed("zero", ["f"], lambda: fallocate(fd, ZERO_RANGE, 0, 5))
    changed("read", ["f"], lambda: len(os.pread(fd, 1, 0)))
    os.close(fd)
    changed("chmod to the same", ["f"], lambda: os.chmod("f", 0o666))
    changed("chown to nobody", ["f"], lambda: os.chown("f", -1, -1))
    changed("chown", ["f", "."], lambda: os.chown("f", 5, 5))
    changed("setxattr", ["f"], lambda: os.setxattr("f", "user.k", b"v"))
    changed("removexattr", ["f"], lambda: os.removexattr("f", "user.k"))
    changed("removexattr of none", ["f"], lambda: os.removexattr("f", "user.k"))
    changed("link", ["f", "from", "."], lambda: os.link("f", "from/l"))
    changed("link to what is there", ["f", "from"], lambda: os.link("f", "from/l"))
    changed("unlink", ["f", "from"], lambda: os.unlink("from/l"))
    changed("rename across", ["from", "to", "."], lambda: os.rename("from/g", "to/g"))
    changed("rename of a directory", [".", "to"], lambda: os.rename("from", "to/from"))
    changed("listing", ["to"], lambda: sorted(os.listdir("to")))
    changed("mkdir", ["to", "."], lambda: os.mkdir("to/d"))
    changed("mkdir on what is there", ["to"], lambda: os.mkdir("to/d"))
    changed("rmdir", ["to"], lambda: os.rmdir("to/d"))


def creation():
    """Owners and modes of new objects."""
    os.mkdir("set-gid")
    os.chown("set-gid", 7, 8)
    os.chmod("set-gid", 0o2777)
    makers = [
        lambda path: os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o6777)),
        lambda path: os.mkdir(path, 0o6777),
        lambda path: os.mkfifo(path, 0o6777),
        lambda path: os.symlink("x", path),
    ]

    def make_each():
        said = []
        for number, maker in enumerate(makers):
            path = f"set-gid/{os.getuid()}-{number}"
            maker(path)
            found = os.lstat(path)
            said.append((oct(found.st_mode), found.st_uid, found.st_gid))
        return said

    for uid in [0, 7, 9]:
        print(f"made by {uid} in a set-group-ID directory:", as_user(uid, make_each))
    os.umask(0o27)
    os.mkdir("masked", 0o777)
    os.mkfifo("masked/p", 0o777)
    os.umask(0)
    print("umask:", oct(os.stat("masked").st_mode), oct(os.stat("masked/p").st_mode))
    for kind, device in [(stat.S_IFCHR, os.makedev(1, 3)), (stat.S_IFBLK, os.makedev(259, 70000))]:
        path = f"device-{device}"
        os.mknod(path, kind | 0o600, device)
        print(f"device {device}:", os.lstat(path).st_rdev == device)
    print("mknod by a user:", as_user(2, lambda: os.mknod("open/device", stat.S_IFBLK | 0o600, os.makedev(7, 3))))
    listener = socket.socket(socket.AF_UNIX)
    show("bind", lambda: listener.bind("socket"))
    listener.listen(1)
    show("connect", lambda: socket.socket(socket.AF_UNIX).connect("socket"))


def opening():
    """Flags of open."""
    make("f")
    os.mkdir("d")
    os.mkfifo("p")
    for name, target in [("link", "f"), ("dangling", "nowhere"), ("loop", "loop")]:
        os.symlink(target, name)
    o = os
    cases = [
        ("link", o.O_RDONLY | o.O_NOFOLLOW), ("link", o.O_PATH | o.O_NOFOLLOW), ("f", o.O_DIRECTORY),
        ("dangling", o.O_CREAT | o.O_EXCL | o.O_WRONLY), ("dangling", o.O_CREAT | o.O_WRONLY), ("loop", o.O_RDONLY),
        ("link", o.O_CREAT | o.O_EXCL | o.O_WRONLY), ("new/", o.O_CREAT | o.O_WRONLY), ("f/", o.O_RDONLY),
        ("d", o.O_WRONLY), ("d", o.O_CREAT | o.O_RDONLY), ("f", o.O_RDWR | o.O_SYNC), ("f", o.O_RDONLY | o.O_DIRECT),
        ("n" * 256, o.O_CREAT | o.O_WRONLY), ("n" * 255, o.O_CREAT | o.O_WRONLY), ("p", o.O_WRONLY | o.O_NONBLOCK),
        ("p", o.O_RDONLY | o.O_NONBLOCK), (".", o.O_TMPFILE | o.O_RDWR), ("socket", o.O_RDONLY),
    ]

    def kind_of(path, flags):
        return with_fd(path, flags, lambda fd: oct(stat.S_IFMT(os.fstat(fd).st_mode)))

    for path, flags in cases:
        show(f"open {path[:9]} {flags:o}", lambda: kind_of(path, flags))


def names():
    """Errors of calls with odd names."""
    calls = {"rmdir": os.rmdir, "unlink": os.unlink, "mkdir": os.mkdir, "mkfifo": os.mkfifo, "readlink": os.readlink}
    for path, (name, call) in itertools.product([".", "d/..", "d/.", ""], calls.items()):
        show(f"{name} {path!r}", lambda: call(path))
    os.mkdir("e")
    pairs = [
        ("d", "d/sub"), ("f", "e"), ("e", "f"), ("d/.", "x"), ("d/..", "x"), ("none", "x"), ("f", "d/"), ("f", "f/"),
        ("d", "d"), (".", "x"), ("link/", "x"), ("loop/a", "x"), ("n" * 256, "x"), ("f", "n" * 256), ("f/", "x"),
        ("d", "e"), ("e/", "d/"),
    ]
    for old, new in pairs:
        show(f"rename {old[:9]} {new[:9]}", lambda: os.rename(old, new))
    for flags in [NOREPLACE, EXCHANGE, NOREPLACE | EXCHANGE]:
        make("a")
        make("b")
        show(f"renameat2 {flags}", lambda: renameat2("a", "b", flags))
    for old, new in [("f", "h"), ("f", "h"), ("d", "hd"), ("link", "hl"), ("none", "x"), ("f", "f/x"), ("f", "x/")]:
        show(f"link {old} {new}", lambda: os.link(old, new, follow_symlinks=False))
    for length in [4095, 4096, 0]:
        show(f"symlink of {length}", lambda: os.symlink("s" * length, f"s{length}"))


def removed():
    """Objects without a name that are open."""
    fd = os.open("gone", os.O_CREAT | os.O_RDWR)
    os.write(fd, b"hello")
    os.unlink("gone")
    show("cut a nameless file", lambda: os.ftruncate(fd, 2))
    show("chmod a nameless file", lambda: os.fchmod(fd, 0o600))
    found = os.fstat(fd)
    print("nameless:", found.st_nlink, found.st_size, oct(found.st_mode), os.pread(fd, 9, 0))
    os.mkdir("gone")
    folder = os.open("gone", os.O_RDONLY)
    os.rmdir("gone")
    show("create in a removed directory", lambda: os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    show("list a removed directory", lambda: os.listdir(folder))
    print("removed:", os.fstat(folder).st_nlink)


def space():
    """Sizes, holes, fallocate."""
    fd = os.open("space", os.O_CREAT | os.O_RDWR)
    for offset in [1 << 31, 1 << 40]:
        show(f"write at {offset}", lambda: (os.pwrite(fd, b"x", offset), os.fstat(fd).st_size))
    show("data", lambda: os.lseek(fd, 4096, os.SEEK_DATA))
    show("hole", lambda: os.lseek(fd, 0, os.SEEK_HOLE))
    show("data beyond", lambda: os.lseek(fd, 1 << 41, os.SEEK_DATA))
    modes = [0, KEEP_SIZE, PUNCH_HOLE, PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE]
    for mode in modes + [ZERO_RANGE | PUNCH_HOLE, COLLAPSE, INSERT, 64]:
        show(f"fallocate {mode}", lambda: fallocate(fd, mode, 0, 4096))
    show("fallocate of nothing", lambda: fallocate(fd, 0, 0, 0))
    show("fallocate read-only", lambda: with_fd("f", os.O_RDONLY, lambda f: fallocate(f, 0, 0, 1)))
    show("cut a directory", lambda: os.truncate("d", 0))
    show("cut below nothing", lambda: os.ftruncate(fd, -1))


def running():
    """Programs that run, and files open for writing."""
    for name, program in [("sleeper", "/bin/sleep"), ("truth", "/bin/true")]:
        shutil.copy(program, name)
        os.chmod(name, 0o755)
    sleeper = subprocess.Popen(["./sleeper", "60"])
    show("write a running program", lambda: os.open("sleeper", os.O_WRONLY))
    show("cut a running program", lambda: os.truncate("sleeper", 0))
    show("remove a running program", lambda: os.unlink("sleeper"))
    sleeper.kill()
    sleeper.wait()
    show("run what is written", lambda: with_fd("truth", os.O_WRONLY, lambda fd: subprocess.call(["./truth"])))


def strangers():
    """What others than the owner may."""
    os.mkdir("sticky")
    os.chmod("sticky", 0o1777)
    for owner in [1, 2]:
        make(f"sticky/f{owner}", owner=owner)
        os.mkdir(f"sticky/d{owner}")
        os.chown(f"sticky/d{owner}", owner, owner)
    for name, call in [
        ("unlink", lambda: os.unlink("sticky/f2")), ("rename", lambda: os.rename("sticky/f2", "sticky/z")),
        ("rename over", lambda: os.rename("sticky/f1", "sticky/f2")), ("rmdir", lambda: os.rmdir("sticky/d2")),
        ("rename away", lambda: os.rename("sticky/d2", "open/d2")), ("unlink own", lambda: os.unlink("sticky/f1")),
        ("rename own away", lambda: os.rename("sticky/d1", "open/d1")), ("chmod", lambda: os.chmod("f", 0o777)),
        ("utime to now", lambda: os.utime("f")), ("utime", lambda: os.utime("f", (1, 1))),
        ("mkdir", lambda: os.mkdir("e/x")), ("trusted", lambda: os.setxattr("open", "trusted.a", b"b")),
    ]:
        print(f"stranger's {name}:", as_user(1, call))
    for name in ["user.x", "trusted.x", "security.x", "system.x", "x", "user.", "user." + "n" * 251]:
        show(f"setxattr {name[:12]}", lambda: os.setxattr("f", name, b"1"))
        show(f"getxattr {name[:12]}", lambda: os.getxattr("f", name))
    for path in ["link", "p", "d"]:
        show(f"setxattr of {path}", lambda: os.setxattr(path, "user.x", b"1", follow_symlinks=False))
    found = os.statvfs(".")
    print("statvfs:", found.f_namemax, found.f_bavail <= found.f_bfree <= found.f_blocks, found.f_ffree > 0)


os.chdir(sys.argv[1])
os.umask(0)
os.mkdir("open", 0o777)
for part in [set_id_bits, times, creation, opening, names, removed, space, running, strangers]:
    part()
