"""Two Python processes import the same 2,000 fresh modules at once, and write their bytecode.

Both compile every module and put its .pyc in place by a rename, each over the other's.
"""

import importlib
import os
import subprocess
import sys

PACKAGES = 20
MODULES = 100


def generate():
    for p in range(PACKAGES):
        os.makedirs(f"storm/p{p}")
        for m in range(MODULES):
            with open(f"storm/p{p}/m{m}.py", "w", encoding="utf-8") as file:
                if m > 0:
                    file.write(f"from . import m{m - 1} as before\n")
                file.write(f"def answer():\n    return {p * MODULES + m}\n")
        with open(f"storm/p{p}/__init__.py", "w", encoding="utf-8"):
            pass
    with open("storm/__init__.py", "w", encoding="utf-8"):
        pass


def storm():
    """Imports everything; the sum of what the modules answer tells that each is itself."""
    sys.path.insert(0, os.getcwd())
    found = 0
    for p in range(PACKAGES):
        for m in range(MODULES):
            found += importlib.import_module(f"storm.p{p}.m{m}").answer()
    count = PACKAGES * MODULES
    assert found == count * (count - 1) // 2, found


def check_bytecode():
    """Every module has one whole .pyc that fits its source, and no half-made one is left."""
    count = 0
    for folder, _, names in os.walk("storm"):
        if not folder.endswith("__pycache__"):
            continue
        for name in names:
            assert name.endswith(".pyc"), f"{folder}/{name} is left over"
            source = os.stat(os.path.join(folder, "..", name.split(".")[0] + ".py"))
            with open(os.path.join(folder, name), "rb") as file:
                head = file.read(16)
            assert int.from_bytes(head[8:12], "little") == int(source.st_mtime), name
            assert int.from_bytes(head[12:16], "little") == source.st_size, name
            count += 1
    assert count == PACKAGES * (MODULES + 1) + 1, f"{count} .pyc files"


def together():
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")}
    command = [sys.executable, __file__, "storm"]
    both = [subprocess.Popen(command, env=environment) for _ in range(2)]
    ends = [one.wait() for one in both]
    assert ends == [0, 0], f"the processes ended with {ends}"


def main():
    generate()
    together()  # Cold: they compile and write.
    check_bytecode()
    together()  # Warm: they read the bytecode.
    check_bytecode()


if __name__ == "__main__":
    storm() if sys.argv[1:] == ["storm"] else main()
