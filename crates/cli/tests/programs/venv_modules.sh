# A virtual environment in the working directory with a dozen extension modules, each of them a library of its
# own that needs another one of the environment: through $ORIGIN, as wheels do it. Python's headers are not asked
# for: those are loaded by ctypes; modules of the system's Python, copied in, by its import system.
set -e
/usr/bin/python3 -m venv --without-pip v
site=$(v/bin/python -c 'import site; print(site.getsitepackages()[0])')
mkdir -p "$site/pkg/pkg.libs"
for i in $(seq 12); do
    printf 'int base(void) { return %d; }\n' "$i" > base.c
    gcc -shared -fPIC -o "$site/pkg/pkg.libs/libbase$i.so" base.c
    printf 'extern int base(void); int answer(void) { return base() * 10; }\n' > module.c
    gcc -shared -fPIC -o "$site/pkg/_m$i.so" module.c -L"$site/pkg/pkg.libs" -lbase$i -Wl,-rpath,'$ORIGIN/pkg.libs'
done
cat > "$site/pkg/__init__.py" <<'P'
import ctypes, os
here = os.path.dirname(os.path.abspath(__file__))
modules = [ctypes.CDLL(f"{here}/_m{i}.so") for i in range(1, 13)]
again = [ctypes.CDLL(f"{here}/_m{i}.so") for i in range(1, 13)]
P
cat > try.py <<'P'
import pkg
assert [m.answer() for m in pkg.modules] == [i * 10 for i in range(1, 13)], [m.answer() for m in pkg.modules]
assert len({m._handle for m in pkg.modules}) == 12
assert [m._handle for m in pkg.modules] == [m._handle for m in pkg.again]
P
v/bin/python try.py
# Extension modules of the system's Python, moved into the environment.
for name in _ctypes _json _bz2 _lzma _sqlite3 _ssl; do
    from=$(/usr/bin/python3 -c "import importlib.util as u; s = u.find_spec('$name'); print(s.origin if s and s.origin and s.origin.endswith('.so') else '')")
    if [ -n "$from" ]; then cp "$from" "$site/pkg/"; fi
done
cat > real.py <<'P'
import glob, importlib.machinery as m, importlib.util as u, os, site
files = sorted(glob.glob(site.getsitepackages()[0] + "/pkg/_[a-z]*.cpython-*.so"))
loaded = []
for path in files:
    name = os.path.basename(path).split(".")[0]
    spec = u.spec_from_file_location(name, path, loader=m.ExtensionFileLoader(name, path))
    module = u.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.__name__ == name and module.__file__ == path
    loaded.append(module)
assert len({id(module) for module in loaded}) == len(files) and len(files) >= 2, files
P
v/bin/python real.py
