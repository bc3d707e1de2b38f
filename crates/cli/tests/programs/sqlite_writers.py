"""Two SQLite writers and a reader on one database, then a writer that is killed in a transaction.

Usage: sqlite_writers.py delete|truncate|wal. The writers move money between accounts, so that every
transaction leaves the sum as it was: a reader that sees another sum has seen half a transaction.
"""

import os
import signal
import sqlite3
import subprocess
import sys
import time

DATABASE = "bank.db"
ACCOUNTS = 100
MONEY = 1000
TRANSFERS = 60


def connect():
    """A connection that waits for others' locks; transactions are begun by hand."""
    connection = sqlite3.connect(DATABASE, timeout=60, isolation_level=None)
    connection.execute("pragma synchronous=full")
    return connection


def total(connection):
    return connection.execute("select sum(money) from account").fetchone()[0]


def create(journal):
    connection = connect()
    found = connection.execute(f"pragma journal_mode={journal}").fetchone()[0]
    assert found == journal, f"journal mode is {found}"
    connection.execute("create table account(id integer primary key, money integer)")
    connection.execute("create table transfer(writer text, number integer, primary key(writer, number))")
    connection.executemany("insert into account values(?, ?)", [(i, MONEY) for i in range(ACCOUNTS)])
    return connection


def write(name):
    connection = connect()
    for number in range(TRANSFERS):
        connection.execute("begin immediate")
        source, target = (number * 7) % ACCOUNTS, (number * 13 + 1) % ACCOUNTS
        connection.execute("update account set money = money - 1 where id = ?", (source,))
        connection.execute("update account set money = money + 1 where id = ?", (target,))
        connection.execute("insert into transfer values(?, ?)", (name, number))
        connection.execute("commit")
    connection.close()


def read():
    """Reads until both writers are done."""
    connection = connect()
    looks = 0
    while connection.execute("select count(*) from transfer").fetchone()[0] < 2 * TRANSFERS:
        assert total(connection) == ACCOUNTS * MONEY, f"half a transaction: {total(connection)}"
        looks += 1
        # In rollback mode a reader keeps writers out; one that never rests would starve them.
        time.sleep(0.005)
    assert looks > 0, "the reader never ran beside the writers"
    connection.close()


def die():
    """Changes pages on disk within a transaction, then waits to be killed."""
    connection = connect()
    connection.execute("pragma cache_size=5")
    connection.execute("begin immediate")
    connection.execute("create table junk(x)")
    connection.executemany("insert into junk values(?)", [("x" * 1000,) for _ in range(500)])
    connection.execute("update account set money = 0")
    print("dirty", flush=True)
    signal.pause()


def start(*arguments, **options):
    return subprocess.Popen([sys.executable, __file__, *arguments], **options)


def main(journal):
    # Kept open, so that the others surely share the database with somebody.
    first = create(journal)
    others = [start("write", "a"), start("write", "b"), start("read")]
    ends = [other.wait() for other in others]
    assert ends == [0, 0, 0], f"writers and reader ended with {ends}"

    first.close()

    victim = start("die", stdout=subprocess.PIPE)
    assert victim.stdout.readline() == b"dirty\n"
    victim.kill()
    victim.wait()
    if journal == "delete":
        assert os.path.exists(DATABASE + "-journal"), "nothing to roll back: the test proves nothing"

    connection = connect()
    assert total(connection) == ACCOUNTS * MONEY, total(connection)
    assert connection.execute("select count(*) from transfer").fetchone()[0] == 2 * TRANSFERS
    assert connection.execute("pragma integrity_check").fetchone()[0] == "ok"
    assert not connection.execute("select 1 from sqlite_master where name = 'junk'").fetchone()
    connection.execute("begin immediate")  # The dead writer's locks are gone.
    connection.execute("commit")
    connection.close()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", name]:
            write(name)
        case ["read"]:
            read()
        case ["die"]:
            die()
        case [journal]:
            main(journal)
        case _:
            sys.exit(__doc__)
