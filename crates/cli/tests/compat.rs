//! The program matrix: ordinary programs on a pool, through every door, written to
//! `docs/guide/compatibility.md` when `TIDEPOOL_WRITE_DOCS=1`, and compared with it otherwise.
//!
//! Each row is a script that checks its own result. A row that cannot pass through a door
//! says why in the table, and the test demands that it really does not pass, so that the
//! table stays true. Longer programs are in `programs/`, which rows find as `$PROGRAMS`.

mod common;

use common::{Sandbox, doors, run_bounded, text};
use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long one row may take before it counts as hanging.
const ROW_MAX: Duration = Duration::from_secs(240);

struct Row {
    name: &'static str,
    /// Programs that must be installed; a missing one skips the row loudly.
    needs: &'static [&'static str],
    script: &'static str,
    /// Doors through which it cannot work, and why.
    not_through: &'static [(&'static str, &'static str)],
}

const STATIC: &[(&str, &str)] =
    &[("preload", "the program is static: there is no libc to intercept; use FUSE")];

const H5PY: &str = "/usr/lib/python3/dist-packages/h5py";
const OPENMPI: [&str; 3] = ["gcc", "mpicc.openmpi", "mpirun.openmpi"];
const MPICH: [&str; 3] = ["gcc", "mpicc.mpich", "mpirun.mpich"];

const ROWS: &[Row] = &[
    row("cat, cp, ls", &[], r#"
        seq 100000 > a; cp a b; cmp a b; cat a b > c; test $(wc -c < c) = $(( $(wc -c < a) * 2 )); test "$(ls)" = "a
b
c""#),
    row("cp -a", &["cp"], r#"
        mkdir -p s/d; echo x > s/f; ln -s f s/l; ln s/f s/h; touch -d '2001-02-03 04:05:06.789' s/f s/d; chmod 751 s/d
        cp -a s t; test "$(stat -c '%a %Y %h' s/f s/d)" = "$(stat -c '%a %Y %h' t/f t/d)"; test "$(readlink t/l)" = f
        test $(stat -c %i t/f) = $(stat -c %i t/h)"#),
    row("mv", &[], r#"
        mkdir d e; echo 1 > d/a; echo 2 > b; mv b d/b; mv d/a d/b; test "$(cat d/b)" = 1; mv d e/; test -f e/d/b; ! test -e d
        echo out > out; mv out ../../outside; test "$(cat ../../outside)" = out; mv ../../outside back; test "$(cat back)" = out"#),
    row("ln, ln -s", &[], r#"
        echo x > a; ln a b; test $(stat -c %h a) = 2; ln -s a l; test "$(cat l)" = x; ln -sfn b l; test "$(readlink l)" = b
        ! ln a b 2>/dev/null; mkdir d; ln -s .. d/up; test "$(cat d/up/a)" = x"#),
    row("rm -r", &[], r#"mkdir -p d/e/f; touch d/e/f/g d/h; rm -r d; test -z "$(ls -A)""#),
    row("truncate, touch -d, chmod", &[], r#"
        truncate -s 10M f; test $(stat -c %s f) = 10485760; truncate -s 3 f; test $(stat -c %s f) = 3
        touch -d '2020-01-02 03:04:05' f; test $(stat -c %Y f) = $(date -d '2020-01-02 03:04:05' +%s); chmod 640 f; test $(stat -c %a f) = 640"#),
    row("du, df", &[], r#"
        head -c 1000000 /dev/zero | tr '\0' x > f; truncate -s 1G s; test $(du -k f | cut -f1) -ge 976; test $(du -k s | cut -f1) -lt 100
        df . | grep -q /"#),
    row("sort", &[], r#"seq 20000 -1 1 > f; sort -n -T . -S 100K f -o f; test "$(head -n1 f)" = 1; sort -c -n f"#),
    row("dd", &[], r#"
        dd if=/dev/zero of=f bs=64K count=10 conv=fsync 2>/dev/null; dd if=f of=g bs=1 count=3 seek=100 skip=5 2>/dev/null
        test $(stat -c %s g) = 103"#),
    row("find, xargs, grep", &["find"], r#"
        mkdir -p a/b c; for i in 1 2 3; do echo "line $i" > a/b/f$i; done; test $(find . -type f | wc -l) = 3
        find . -name 'f[12]' -print0 | xargs -0 grep -l 'line 2' | grep -q f2; find . -type f -delete; test $(find . -type f | wc -l) = 0"#),
    row("tar both ways", &["tar"], r#"
        mkdir -p s/d; seq 1000 > s/f; ln -s f s/l; ln s/f s/h; chmod 700 s/d; tar cf t.tar s; mkdir x; tar xf t.tar -C x
        tar czf t.tgz s; mkdir y; tar xzf t.tgz -C y; diff -r s x/s; diff -r s y/s; test $(stat -c %i x/s/f) = $(stat -c %i x/s/h)
        test "$(stat -c '%a %Y' s/d s/f)" = "$(stat -c '%a %Y' x/s/d x/s/f)""#),
    row("rsync both ways", &["rsync"], r#"
        mkdir -p s/d; seq 1000 > s/f; ln -s f s/l; ln s/f s/h; o=$(mktemp -d); rsync -aHX s/ "$o"/; rsync -aHX "$o"/ t/
        test -z "$(rsync -nacHX --delete --out-format=%n s/ t/)"; echo more >> s/f; rsync -a s/ t/; cmp s/f t/f; rm -r "$o""#),
    row("sed -i", &["sed"], r#"echo hello > f; sed -i s/hello/world/ f; test "$(cat f)" = world"#),
    row("gzip", &["gzip"], r#"seq 10000 > f; cp f g; gzip f; gunzip f.gz; cmp f g"#),
    row("git init, add, commit, clone, gc", &["git"], r#"
        export HOME=$PWD GIT_CONFIG_NOSYSTEM=1; git config --global user.email a@b; git config --global user.name n
        git init -q r; cd r; for i in 1 2 3; do seq $i 1000 > f; git add f; git commit -qm $i; done; git gc -q; git fsck --no-progress
        test $(git log --oneline | wc -l) = 3; cd ..; git clone -q r c; cmp r/f c/f; cd c; git checkout -q HEAD~1; git status --short"#),
    row("sqlite3, rollback journal", &["sqlite3"], r#"
        sqlite3 d "create table t(a); begin; insert into t select value from generate_series(1,5000); commit;"
        test $(sqlite3 d "select count(*) from t") = 5000; test "$(sqlite3 d 'pragma integrity_check')" = ok"#),
    row("sqlite3, write-ahead log", &["sqlite3"], r#"
        sqlite3 d "pragma journal_mode=wal; create table t(a);" | grep -q wal
        for i in 1 2 3; do sqlite3 d "insert into t select value from generate_series(1,1000)"; done
        test $(sqlite3 d "select count(*) from t") = 3000; test "$(sqlite3 d 'pragma integrity_check')" = ok"#),
    row("git: branches, a merge, push to a bare repository", &["git"], r#"
        export HOME=$PWD GIT_CONFIG_NOSYSTEM=1; git config --global user.email a@b; git config --global user.name n
        git init -q --bare hub; git clone -q hub a 2>/dev/null; cd a; for i in $(seq 50); do seq $i 500 > f$i; done; git add .; git commit -qm first
        git push -q origin HEAD; git checkout -qb side; echo side >> f1; git commit -qam side; git checkout -q -; echo main >> f2; git commit -qam main
        git merge -q --no-edit side; git push -q origin HEAD; cd ..; git clone -q hub b; diff -r -x .git a b; echo b >> b/f3; git -C b commit -qam b
        git -C b push -q; git -C a pull -q; diff -r -x .git a b; git -C hub gc -q --aggressive; for r in hub a b; do git -C $r fsck --strict --no-progress; done
        test -z "$(git -C a status --porcelain)"; test $(git -C hub rev-list --count --all) = 5"#),
    row(
        "sqlite3: two writers, a reader, a killed writer; rollback journal",
        &["/usr/bin/python3"],
        r#"/usr/bin/python3 "$PROGRAMS/sqlite_writers.py" delete"#,
    ),
    row(
        "sqlite3: two writers, a reader, a killed writer; write-ahead log",
        &["/usr/bin/python3"],
        r#"/usr/bin/python3 "$PROGRAMS/sqlite_writers.py" wal"#,
    )
    .not(&[(
        "preload",
        "several processes need the log's index in shared memory, and a shared writable mapping belongs to one \
         family of processes; use a rollback journal, or FUSE",
    )]),
    row("gcc, make, run the result", &["gcc", "make"], r#"
        printf 'int f(void){return 42;}\n' > f.c; printf 'int f(void);\nint main(void){return f()-42;}\n' > m.c
        printf 'p: m.o f.o\n\tgcc -o $@ m.o f.o\n%%.o: %%.c\n\tgcc -c $<\n' > Makefile; make -s; ./p; touch f.c; make -s | cat; make -q"#),
    row(
        "shared library in the pool, found by the loader",
        &["gcc"],
        r#"
        printf 'int f(void){return 42;}\n' > f.c; printf 'int f(void);\nint main(void){return f()-42;}\n' > m.c
        gcc -shared -fPIC -o libf.so f.c; gcc -o q m.c -L. -lf; LD_LIBRARY_PATH=$PWD ./q"#,
    )
    .not(&[("preload", "the loader opens libraries before anything can be intercepted; use FUSE, or dlopen")]),
    row("shell script run by its path", &[], r#"printf '#!/bin/sh\necho ran "$1"\n' > s; chmod +x s; test "$(./s x)" = "ran x""#),
    row("python3: os.replace, tempfile, shutil", &["python3"], r#"
        python3 - <<'P'
import os, shutil, tempfile
open('a','w').write('1'); os.replace('a','b'); assert open('b').read()=='1' and not os.path.exists('a')
with tempfile.NamedTemporaryFile(dir='.') as t: t.write(b'x'*100); t.flush(); assert os.path.getsize(t.name)==100
with tempfile.TemporaryDirectory(dir='.') as d: open(d+'/f','w').close()
os.makedirs('s/t'); open('s/t/f','w').write('y'); shutil.copytree('s','c'); shutil.move('c','m'); shutil.rmtree('s')
assert open('m/t/f').read()=='y' and sorted(os.listdir('.'))==['b','m'], os.listdir('.')
assert sorted(e.name for e in os.scandir('.') if e.is_dir())==['m']
fd=os.open('b',os.O_RDONLY); os.stat('b',dir_fd=os.open('.',os.O_RDONLY)); os.close(fd)
P"#),
    row("python3: mmap", &["python3"], r#"
        python3 - <<'P'
import mmap
open('f','wb').write(b'a'*10000)
with open('f','r+b') as f:
    m=mmap.mmap(f.fileno(),0); m[5000:5005]=b'hello'; m.flush(); m.close()
assert open('f','rb').read()[4999:5006]==b'ahelloa'
with open('f','rb') as f:
    m=mmap.mmap(f.fileno(),0,access=mmap.ACCESS_READ); assert m.find(b'hello')==5000
P"#),
    row("python3: multiprocessing, subprocess", &["python3"], r#"
        cat > mp.py <<'P'
import multiprocessing as mp, subprocess, sys
def work(i):
    with open(f'w{i}','w') as f: f.write(str(i))
    with open('log','a') as f: f.write(f'{i}\n')
    return i
if __name__=='__main__':
    with mp.Pool(4) as p: assert sorted(p.map(work,range(20)))==list(range(20))
    assert sorted(map(int,open('log')))==list(range(20))
    with open('out','wb') as o: subprocess.run(['echo','sub'],stdout=o,check=True)
    assert open('out').read()=='sub\n'
    assert subprocess.run(['cat'],stdin=open('out'),capture_output=True).stdout==b'sub\n'
P
        python3 mp.py"#),
    row("python3: fcntl and flock locks", &["python3"], r#"
        python3 - <<'P'
import fcntl, os
f=open('l','w'); fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB); g=open('k','w'); fcntl.flock(g,fcntl.LOCK_EX)
if os.fork()==0:
    h=open('l','w'); e=0
    try: fcntl.lockf(h,fcntl.LOCK_EX|fcntl.LOCK_NB)
    except OSError: e+=1
    try: fcntl.flock(open('k','w'),fcntl.LOCK_EX|fcntl.LOCK_NB)
    except OSError: e+=1
    os._exit(e)
assert os.waitstatus_to_exitcode(os.wait()[1])==2
P"#),
    row(
        "python3: 2,000 new modules imported by two processes at once",
        &["/usr/bin/python3"],
        r#"/usr/bin/python3 "$PROGRAMS/import_storm.py""#,
    ),
    row(
        "python3: a virtual environment with extension modules that need libraries of it",
        &["/usr/bin/python3", "gcc"],
        r#"bash "$PROGRAMS/venv_modules.sh""#,
    ),
    row(
        "fio, by libaio and by psync",
        &["fio"],
        r#"
        for e in psync libaio; do fio --name=a --ioengine=$e --rw=randwrite --bs=4k --size=1m --verify=crc32c --filename=f --output=o; done
        for way in --userspace_reap --iodepth_batch=8 "--numjobs=2 --thread"; do
            fio --name=b --ioengine=libaio --iodepth=16 --rw=randrw --bs=4k --size=1m --verify=crc32c $way --output=o; done"#,
    ),
    row(
        "setfacl, getfacl; cp -a, rsync -A, tar --acls of lists, there and back",
        &["setfacl", "rsync", "/usr/bin/python3"],
        r#"bash "$PROGRAMS/acl.sh""#,
    ),
    row("h5py, file locking on", &[H5PY, "h5dump"], r#"
        export HDF5_USE_FILE_LOCKING=TRUE; /usr/bin/python3 - <<'P'
import h5py, numpy as np
with h5py.File('f.h5','w') as f: f['x']=np.arange(100000.).reshape(100,1000); f['g/y']=np.arange(3)
with h5py.File('f.h5','a') as f: f['x'][5]=0; f.attrs['n']='t'
with h5py.File('f.h5','r') as f: assert f['x'][6,7]==6007 and f['x'][5].sum()==0
P
        h5dump -d g/y f.h5 | grep -q '0, 1, 2'"#),
    row(
        "h5py: two writers and two readers in turn, by HDF5's locks",
        &[H5PY],
        r#"HDF5_USE_FILE_LOCKING=TRUE /usr/bin/python3 "$PROGRAMS/h5py_turns.py""#,
    ),
    row(
        "LAMMPS, a melt with dumps and a restart",
        &["lmp"],
        r#"
        cat > in.melt <<'L'
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 4 0 4 0 4
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
fix 1 all nve
dump d all atom 10 dump.*.melt
run 50
write_restart melt.restart
L
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        lmp -in in.melt -log log.melt > out; grep -q 'Loop time' log.melt; test $(ls dump.*.melt | wc -l) = 6
        printf 'read_restart melt.restart\npair_coeff 1 1 1.0 1.0 2.5\nfix 1 all nve\nrun 10\n' > in.again; lmp -in in.again -log log.again > out2"#,
    ),
    row("MPI-IO by Open MPI", &["mpicc", "mpirun", "gcc"], r#"
        cat > m.c <<'C'
#include <mpi.h>
#include <stdlib.h>
int main(int c,char**v){MPI_Init(&c,&v);int r,n,i,b[1000];MPI_Comm_rank(MPI_COMM_WORLD,&r);MPI_Comm_size(MPI_COMM_WORLD,&n);
for(i=0;i<1000;i++)b[i]=r*1000+i;MPI_File f;
if(MPI_File_open(MPI_COMM_WORLD,"data",MPI_MODE_CREATE|MPI_MODE_RDWR,MPI_INFO_NULL,&f))MPI_Abort(MPI_COMM_WORLD,2);
MPI_File_write_at_all(f,r*4000L,b,1000,MPI_INT,MPI_STATUS_IGNORE);MPI_File_sync(f);MPI_Barrier(MPI_COMM_WORLD);MPI_File_sync(f);
int o=(r+1)%n;MPI_File_read_at_all(f,o*4000L,b,1000,MPI_INT,MPI_STATUS_IGNORE);
for(i=0;i<1000;i++)if(b[i]!=o*1000+i)MPI_Abort(MPI_COMM_WORLD,3);MPI_File_close(&f);MPI_Finalize();return 0;}
C
        mpicc -o m m.c; mpirun --allow-run-as-root --oversubscribe --bind-to none -np 2 ./m; test $(stat -c %s data) = 8000"#),
    row("MPI-IO in atomic mode, contiguous and with holes, by Open MPI's ROMIO", &OPENMPI, r#"
        mpicc.openmpi -O1 -o m "$PROGRAMS/mpi_atomic.c"; mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none --mca io romio321 -np 2 ./m"#),
    row("MPI-IO in atomic mode, contiguous and with holes, by MPICH", &MPICH, r#"
        mpicc.mpich -O1 -o m "$PROGRAMS/mpi_atomic.c"; mpirun.mpich -np 2 ./m; mpirun.mpich -np 4 ./m"#),
    row("MPI-IO: collective, and in order through a shared pointer, by Open MPI's OMPIO and ROMIO", &OPENMPI, r#"
        mpicc.openmpi -O1 -o m "$PROGRAMS/mpi_collective.c"
        for io in ompio romio321; do mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none --mca io $io -np 2 ./m; rm blocks log; done"#),
    row("MPI-IO: collective, and in order through a shared pointer, by MPICH", &MPICH, r#"
        mpicc.mpich -O1 -o m "$PROGRAMS/mpi_collective.c"; mpirun.mpich -np 2 ./m; rm blocks log; mpirun.mpich -np 4 ./m"#),
    row("Go program", &["go"], r#"
        o=$(mktemp -d); cat > $o/m.go <<'G'
package main
import ("os";"fmt")
func main(){ if e:=os.WriteFile("g",[]byte("go"),0644);e!=nil{panic(e)}; os.Rename("g","h"); b,e:=os.ReadFile("h"); if e!=nil{panic(e)}; d,_:=os.ReadDir("."); fmt.Println(string(b),len(d)) }
G
        (cd $o && GOFLAGS=-mod=mod GO111MODULE=off GOCACHE=$o/cache CGO_ENABLED=0 LD_PRELOAD= go build -o m m.go); test "$($o/m)" = "go 1"; test "$(cat h)" = go; rm -r $o"#)
        .not(STATIC),
    row("Go program linked with libc", &["go", "gcc"], r#"
        o=$(mktemp -d); cat > $o/m.go <<'G'
package main
// #include <stdlib.h>
import "C"
import ("os";"os/exec";"fmt";"runtime";"sync")
func one(n string) { if e:=os.WriteFile(n,[]byte("go"),0644);e!=nil{panic(e)}; if e:=os.Rename(n,n+"x");e!=nil{panic(e)}; b,e:=os.ReadFile(n+"x"); if e!=nil||string(b)!="go"{panic(e)}; if e:=os.Remove(n+"x");e!=nil{panic(e)} }
func main(){ C.abs(1); runtime.LockOSThread(); var all sync.WaitGroup; for g:=0;g<8;g++ { all.Add(1); go func(g int){ defer all.Done(); for i:=0;i<50;i++ { one(fmt.Sprintf("%d-%d",g,i)) } }(g) }; all.Wait(); os.Mkdir("d",0755)
 c:=exec.Command("sh","-c","echo sub > s; cat s; basename $(pwd)"); c.Dir="d"; o,e:=c.Output(); if e!=nil{panic(e)}; l,_:=os.ReadDir("."); fmt.Println(len(l),string(o)) }
G
        (cd $o && GOFLAGS=-mod=mod GO111MODULE=off GOCACHE=$o/cache CGO_ENABLED=1 LD_PRELOAD= go build -o m m.go); test "$(echo $($o/m))" = "1 sub d"; test "$(cat d/s)" = sub; rm -r $o"#),
    row("32-bit program without large-file support", &["gcc", "/usr/lib32/libc.so"], r#"
        o=$(mktemp -d); cat > $o/m.c <<'C'
#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>
int main(void) { char n[20]; struct stat s, t; int k = 0; for (int i = 0; i < 60; i++) { sprintf(n, "f%d", i); FILE *f = fopen(n, "w"); if (!f || fstat(fileno(f), &s) || fclose(f) || stat(n, &t) || s.st_ino != t.st_ino) { perror(n); return 1; } }
    DIR *d = opendir("."); struct dirent *e; while ((e = readdir(d))) { if (stat(e->d_name, &s) || (e->d_name[0] != '.' && s.st_ino != e->d_ino)) { perror(e->d_name); return 2; } k++; } return k == 62 ? 0 : 3; }
C
        LD_PRELOAD= gcc -m32 -w -o $o/m $o/m.c; $o/m; test $(ls -i | awk '{print $1}' | sort -u | wc -l) = 60; rm -r $o"#)
        .not(&[("preload", "the library is for 64-bit programs; use FUSE")]),
    row("static program (busybox)", &["busybox"], r#"
        busybox sh -c 'echo a > f; busybox mkdir d; busybox cp f d/g; busybox mv d/g d/h; busybox cat d/h' | grep -q a; test -f d/h"#)
        .not(STATIC),
    row("shell <, >, >>, pipes, here-documents", &[], r#"
        echo one > f; echo two >> f; wc -l < f | grep -q 2; cat f | tr o 0 > g; test "$(cat g)" = "0ne
tw0"; { echo a; echo b; } > h; exec 5<>h; read x <&5; test $x = a; echo c >&5; exec 5>&-; cat <<X > i
text
X
        test "$(cat i)" = text; (exec > sub; echo in sub); test "$(cat sub)" = "in sub"; printf x | tee j > k; cmp j k"#),
    row("cd and relative paths", &[], r#"
        mkdir -p a/b/c; cd a; echo 1 > f; cd b/c; test "$(cat ../../f)" = 1; test "$(pwd)" = "$TIDEPOOL_DIR/$ROW/a/b/c"; cd -; cd ..
        sh -c 'cd a/b; echo 2 > ../g'; test "$(cat a/g)" = 2; test "$(cd a; /bin/pwd)" = "$TIDEPOOL_DIR/$ROW/a"; (cd /; ls / > /dev/null)"#),
    row("a program outside the pool", &[], r#"o=$(mktemp -d); cd $o; seq 10 > f; sort -r f > g; mv g h; test $(wc -l < h) = 10; cd /; rm -r $o"#),
];

const fn row(name: &'static str, needs: &'static [&'static str], script: &'static str) -> Row {
    Row { name, needs, script, not_through: &[] }
}

impl Row {
    const fn not(mut self, doors: &'static [(&'static str, &'static str)]) -> Row {
        self.not_through = doors;
        self
    }

    fn missing(&self) -> Option<&'static str> {
        self.needs.iter().copied().find(|program| !installed(program))
    }

    fn why_not(&self, door: &str) -> Option<&'static str> {
        self.not_through.iter().find(|(d, _)| *d == door).map(|(_, why)| *why)
    }
}

fn installed(program: &str) -> bool {
    if program.starts_with('/') {
        return Path::new(program).exists();
    }
    std::env::var("PATH").unwrap_or_default().split(':').any(|dir| Path::new(dir).join(program).is_file())
}

/// Runs one row in a directory of its own on the pool; what went wrong, if anything did.
fn run_row(sandbox: &Sandbox, door: &str, number: usize, row: &Row) -> Result<(), String> {
    let folder = format!("row{number}");
    let script = format!("set -eu\nmkdir {folder}; cd {folder}; export ROW={folder}\n{}\n", row.script);
    let mut command = sandbox.tidepool(&["exec", "--client", door, "--", "bash", "-c", &script]);
    command.env("PROGRAMS", Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs"));
    let (status, said) = run_bounded(&mut command, &sandbox.path("row.log"), ROW_MAX)?;
    if status.success() {
        return Ok(());
    }
    Err(format!("{status}: {}", said.lines().rev().take(8).collect::<Vec<_>>().join(" / ")))
}

#[test]
fn the_program_matrix_passes() {
    let doors = doors();
    let only = std::env::var("TIDEPOOL_ROW").ok();
    let mut results: Vec<Vec<String>> = ROWS.iter().map(|_| Vec::new()).collect();
    let mut failures = Vec::new();
    for door in &doors {
        let sandbox = Sandbox::new();
        let began = Instant::now();
        let args =
            ["pool", "start", "--name", "m", "--nodes", "3", "--client", door, "--chunk-size", "64KiB"];
        sandbox.ok(&args);
        for (number, row) in ROWS.iter().enumerate() {
            if only.as_ref().is_some_and(|o| !row.name.contains(o.as_str())) {
                continue;
            }
            if let Some(program) = row.missing() {
                println!("SKIPPED: {} through {door}: {program} is not installed", row.name);
                results[number].push("not tested".into());
                continue;
            }
            let passed = run_row(&sandbox, door, number, row);
            if row.why_not(door).is_some() {
                remove_strays(&sandbox.runtime().join("m/mnt"));
            }
            println!("{door:<8} {:<45} {}", row.name, passed.as_ref().err().map_or("pass", |e| e));
            results[number].push(match (row.why_not(door), &passed) {
                (None, Ok(())) => "pass".to_string(),
                (Some(why), Err(_)) => format!("no: {why}"),
                (None, Err(error)) => {
                    failures.push(format!("{} through {door}: {error}", row.name));
                    "FAILS".into()
                }
                (Some(_), Ok(())) => {
                    failures
                        .push(format!("{} through {door} passes, but the table says it cannot", row.name));
                    "pass".into()
                }
            });
        }
        let check = sandbox.tidepool(&["check"]).output().unwrap();
        if !check.status.success() {
            failures.push(format!("check after the rows through {door}: {}", text(&check)));
        }
        sandbox.ok(&["pool", "stop"]);
        sandbox.assert_nothing_left(door);
        println!("{door}: {:.1} s", began.elapsed().as_secs_f64());
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    if only.is_none() && doors.len() == 2 && results.iter().flatten().all(|r| r != "not tested") {
        compare_page(&page(&doors, &results));
    }
}

/// Removes what a program that was not intercepted wrote into the empty directory under the
/// pool's path, as a user has to before the pool can be stopped.
fn remove_strays(mount: &Path) {
    for entry in std::fs::read_dir(mount).unwrap().flatten() {
        let path = entry.path();
        let removed =
            if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        removed.unwrap();
    }
}

fn page(doors: &[&str], results: &[Vec<String>]) -> String {
    let mut page = String::from(
        "# Programs on a pool\n\n\
         Made by `crates/cli/tests/compat.rs`, which runs every row on a pool of three daemons; do not edit.\n\n",
    );
    let _ = writeln!(page, "| program | {} |", doors.join(" | "));
    let _ = writeln!(page, "|---|{}", "---|".repeat(doors.len()));
    for (row, results) in ROWS.iter().zip(results) {
        let _ = writeln!(page, "| {} | {} |", row.name.replace('|', "\\|"), results.join(" | "));
    }
    page
}

/// Writes the page when asked to, and demands that it is up to date otherwise.
fn compare_page(page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/compatibility.md");
    if std::env::var_os("TIDEPOOL_WRITE_DOCS").is_some() {
        std::fs::write(&path, page).unwrap();
    }
    let current = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(current == page, "docs/guide/compatibility.md is out of date; run with TIDEPOOL_WRITE_DOCS=1");
}
