"""Requests of a Darshan log, for the storage simulator: `python -m tidepool.darshan LOG --out trace.txt`.

Darshan's extended tracing (DXT, `DXT_ENABLE_IO_TRACE=1` when the program ran) notes each read and write. Its log is
read with the package `darshan` (`pip install tidepool[darshan]`) and written as a trace of requests
(docs/formats/28-experiments.md). Calls of MPI-IO and the POSIX calls below them are both noted: POSIX calls count,
where there are some. Opens and closes have no times of their own in a log, so there are none.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

REQUESTS_MAX = 10_000_000
"""Requests of a trace, as the simulator takes."""
RANKS_MAX = 1_000_000
SECONDS_MAX = 1_000_000
LENGTH_MAX = 1 << 30
"""Bytes of a request; longer ones are cut into several."""
OFFSET_MAX = 1 << 60
MODULES = ("DXT_POSIX", "DXT_MPIIO")
"""In the order in which they are preferred."""
NO_OFFSET = "requests without an offset, told as -1: collective ones or by a shared file pointer"
SYSTEM = ("/dev/", "/proc/", "/sys/", "/etc/", "/usr/", "/lib/", "/lib64/", "/bin/", "/sbin/", "/run/")
"""Files below these belong to the system: they say nothing of a program's data."""


class LogError(Exception):
    """A log that cannot be read, with what to do about it."""


@dataclass(frozen=True, order=True)
class Request:
    """One read or write."""

    at_ns: int
    """Since the job began."""
    rank: int
    op: str
    file: str
    offset: int
    length: int


@dataclass
class Trace:
    """The requests of a log by time, and what was left out, with how often."""

    requests: list[Request]
    ignored: dict[str, int]


def _backend() -> Any:  # noqa: ANN401 - a package without types
    try:
        return importlib.import_module("darshan.backend.cffi_backend")
    except ImportError as error:
        text = f"the package 'darshan' is needed to read logs: pip install 'tidepool[darshan]' ({error})"
        raise LogError(text) from error


def _wanted(name: str, under: Sequence[str]) -> bool:
    if under:
        return any(name == top or name.startswith(top.rstrip("/") + "/") for top in under)
    return name.startswith("/") and not name.startswith(SYSTEM)


def read(log: str | Path, under: Sequence[str] = ()) -> Trace:
    """Reads all requests to files below `under`; without, to all but the system's.

    `LogError` when it is no log with extended tracing.
    """
    backend = _backend()
    if not Path(log).is_file():
        raise LogError(f"{log}: there is no such file")
    handle = backend.log_open(str(log))
    # The library's own word on a damaged log is a null pointer.
    if not handle["handle"]:
        raise LogError(f"{log}: this is no log of Darshan, or it is damaged")
    try:
        modules = backend.log_get_modules(handle)
        traced = [module for module in MODULES if module in modules]
        if not traced:
            text = f"{log}: it has no extended tracing; run the program again with DXT_ENABLE_IO_TRACE=1"
            raise LogError(text)
        ignored: dict[str, int] = {}
        names = backend.log_get_name_records(handle)
        for module in traced:
            requests = list(_of(backend, handle, module, names, under, ignored))
            if requests:
                return Trace(sorted(requests, key=lambda request: request.at_ns), ignored)
    finally:
        backend.log_close(handle)
    left = ", ".join(f"{count} {why}" for why, count in ignored.items())
    raise LogError(f"{log}: it has no request that counts; left out: {left or 'nothing'}")


def _of(
    backend: Any,  # noqa: ANN401
    handle: object,
    module: str,
    names: dict[int, str],
    under: Sequence[str],
    ignored: dict[str, int],
) -> Iterable[Request]:
    count = 0
    while (record := backend.log_get_record(handle, module, dtype="dict")) is not None:
        name = names.get(record["id"]) or f"file-{record['id']}"
        segments = record["write_count"] + record["read_count"]
        if not _wanted(name, under):
            why = "requests to files of the system, or not asked for"
            ignored[why] = ignored.get(why, 0) + segments
            continue
        rank = record["rank"]
        if not 0 <= rank < RANKS_MAX:
            raise LogError(f"{module}, {name}: rank {rank}; it can be 0 to {RANKS_MAX - 1}")
        count += segments
        if count > REQUESTS_MAX:
            raise LogError(f"{module}: more than {REQUESTS_MAX} requests; take some of the files")
        for op in ("write", "read"):
            for segment in record[f"{op}_segments"]:
                # As Open MPI has it of collective requests and of those by a shared file pointer (Darshan's issue 375).
                if int(segment["offset"]) == -1:
                    ignored[NO_OFFSET] = ignored.get(NO_OFFSET, 0) + 1
                    continue
                request = _request(module, name, rank, op, segment)
                if request.length:
                    yield request
                else:
                    why = "reads and writes of no bytes"
                    ignored[why] = ignored.get(why, 0) + 1


def _request(module: str, name: str, rank: int, op: str, segment: dict[str, Any]) -> Request:
    offset, length, start = int(segment["offset"]), int(segment["length"]), float(segment["start_time"])
    where = f"{module}, {name}, rank {rank}"
    # Not a number is neither.
    if not 0.0 <= start <= SECONDS_MAX:
        raise LogError(f"{where}: a {op} at {start} s; it can be 0 to {SECONDS_MAX}")
    if not (offset >= 0 and length >= 0 and offset + length <= OFFSET_MAX):
        raise LogError(f"{where}: a {op} of {length} bytes at {offset}; at most up to byte {OFFSET_MAX}")
    return Request(round(start * 1e9), rank, op, name, offset, length)


def _word(name: str) -> str:
    """A name without white space and `#`, as traces have them."""
    data = name.encode("utf-8", "surrogateescape")
    return "".join(chr(byte) if 0x21 <= byte <= 0x7E and byte not in b"#%" else f"%{byte:02x}" for byte in data)


def write(trace: Trace, out: TextIO) -> None:
    """Writes a trace of requests, from the first one on."""
    out.write("# rank time op file offset length\n")
    begin = trace.requests[0].at_ns if trace.requests else 0
    for request in trace.requests:
        seconds, rest = divmod(request.at_ns - begin, 1_000_000_000)
        head = f"{request.rank} {seconds}.{rest:09} {request.op} {_word(request.file)}"
        for done in range(0, request.length, LENGTH_MAX):
            length = min(LENGTH_MAX, request.length - done)
            out.write(f"{head} {request.offset + done} {length}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tidepool.darshan", description="Turn a Darshan log into requests for 'tidepool sim experiment'."
    )
    parser.add_argument("log", metavar="LOG", help="a log with extended tracing (DXT_ENABLE_IO_TRACE=1)")
    parser.add_argument("--out", metavar="FILE", help="write the requests there [default: standard output]")
    parser.add_argument(
        "--under",
        metavar="DIR",
        action="append",
        default=[],
        help="only files below this directory; may be given several times [default: all but those of the system]",
    )
    given = parser.parse_args(arguments)
    try:
        trace = read(given.log, given.under)
        if given.out is None:
            write(trace, sys.stdout)
        else:
            with open(given.out, "w", encoding="ascii") as out:
                write(trace, out)
    except (LogError, OSError) as error:
        print(f"tidepool.darshan: {error}", file=sys.stderr)
        return 1
    ranks, files = ({getattr(r, key) for r in trace.requests} for key in ("rank", "file"))
    print(f"{len(trace.requests)} requests of {len(ranks)} ranks to {len(files)} files", file=sys.stderr)
    for why, count in trace.ignored.items():
        print(f"left out: {count} {why}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
