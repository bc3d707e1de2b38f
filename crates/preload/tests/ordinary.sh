#!/bin/bash
# Ordinary programs on a pool, run under the preload client by tests/programs.rs. One check per `t`: a
# name and a script, which `bash -e` runs with its working directory in the pool. Prints `ok NAME` or
# `FAIL NAME` and what the script said. $OUT is a directory outside the pool.
export T=$TIDEPOOL_DIR/ordinary
mkdir "$T" && cd "$T" || exit 1
failed=0
t() {
    local name=$1 said
    shift
    if said=$(timeout 120 bash -ec "$*" 2>&1 </dev/null); then
        echo "ok $name"
    else
        echo "FAIL $name: $said" | tail -20
        failed=1
    fi
}
# The check's program is not on every machine.
needs() { command -v "$1" >/dev/null; }
t redirect 'echo a > f; echo b >> f; test "$(cat < f)" = "a
b"'
t append-both '( echo 1; echo 2; ls /nonexist || true ) > g 2>&1; test $(wc -l < g) = 3'
t subshell-shared '( echo x; ( echo y ); /bin/echo z ) > sh; test "$(cat sh)" = "x
y
z"'
t cp-a 'mkdir d; echo q > d/1; ln -s 1 d/l; chmod 640 d/1; touch -d 2001-01-01 d/1; cp -a d e; test "$(stat -c %a%Y e/1)" = "$(stat -c %a%Y d/1)"; test "$(readlink e/l)" = 1'
t cp-in 'cp -a /etc/skel /etc/passwd .; cmp passwd /etc/passwd'
t cp-out 'cp passwd $OUT/out.x; cmp $OUT/out.x /etc/passwd; rm $OUT/out.x'
t mv 'mv passwd pw; test -f pw; mv d d2; test -d d2; cp pw $OUT/x.x; mv $OUT/x.x back; mv back $OUT/x.x; rm $OUT/x.x'
t ln 'ln pw pw2; test $(stat -c %h pw) = 2; ln -s pw pwl; cmp pwl pw; ln -s /etc/hostname hn; cmp hn /etc/hostname'
t ls 'ls -l > lsout; grep -q pw lsout; ls -R / -d >/dev/null; ls -la .. >/dev/null'
t find 'test $(find . -name 1 | wc -l) = 2; find $TIDEPOOL_DIR -type f >/dev/null; find . -name l -delete; test ! -e e/l'
t du 'du -sh . >/dev/null; df . | grep -q .'
t sort 'seq 1 20000 | sort -R > r; sort -n r -o r2; test $(tail -1 r2) = 20000; sort -T . -S 100k -n r > r3; cmp r2 r3'
t head-c 'head -c 3000000 /dev/urandom > big; cp big big2; cmp big big2; dd if=big of=big3 bs=4k 2>/dev/null; cmp big big3; dd if=/dev/zero of=big3 bs=1k count=1 seek=100 conv=notrunc 2>/dev/null; test $(stat -c %s big3) = 3000000'
t tar 'tar cf t.tar d2 e pw; mkdir x; tar xf t.tar -C x; diff -r d2 x/d2; tar czf $OUT/t.x.tgz d2; tar xzf $OUT/t.x.tgz -C x; rm $OUT/t.x.tgz'
t sed-i 'echo hello > s; sed -i s/hello/bye/ s; test $(cat s) = bye'
t gzip 'gzip -k big; gunzip -c big.gz | cmp - big'
needs git && t git 'git init -q repo; cd repo; git config user.email a@b; git config user.name n; echo 1 > a; git add a; git commit -qm one; echo 2 >> a; git commit -qam two; git log --oneline | wc -l | grep -q 2; git status --porcelain; git gc -q; git fsck 2>/dev/null; cd ..; git clone -q repo clone; test -f clone/a'
needs sqlite3 && t sqlite 'sqlite3 db "create table t(a); insert into t values(1),(2);"; test $(sqlite3 db "select sum(a) from t") = 3'
needs sqlite3 && t sqlite-wal 'sqlite3 wdb "pragma journal_mode=wal; create table t(a); insert into t values(1),(2);" >/dev/null; sqlite3 wdb "insert into t select a from t"; test $(sqlite3 wdb "select count(*) from t") = 4; test "$(sqlite3 wdb "pragma integrity_check")" = ok'
needs gcc && t gcc 'printf "#include <stdio.h>\nint main(){puts(\"hey\");}\n" > h.c; gcc -O1 h.c -o h; test $(./h) = hey; $T/h >/dev/null'
needs make && t make 'printf "all: a.o b.o\n\tcat a.o b.o > all\n%%.o: %%.c\n\tgcc -c \$< -o \$@\n" > Makefile; echo "int a;" > a.c; echo "int b;" > b.c; make -j2 > mk.log; test -f all; grep -q gcc mk.log'
t script 'printf "#!/bin/sh\necho \$0 \$1\n" > sc; chmod +x sc; test "$(./sc arg)" = "./sc arg"; PATH=$T:$PATH; test "$(sc arg)" = "$T/sc arg"'
t noexec '! ./s 2>/dev/null'
t py-basic 'python3 - <<P
import os,tempfile,shutil,mmap,subprocess,sys
open("p1","w").write("x"*100000)
assert open("p1").read()=="x"*100000
os.replace("p1","p2"); assert os.listdir(".").count("p2")==1
with tempfile.TemporaryDirectory(dir=".") as td:
    with tempfile.NamedTemporaryFile(dir=td) as f: f.write(b"a"); f.flush(); assert os.path.getsize(f.name)==1
    with tempfile.TemporaryFile(dir=td) as f: f.write(b"a"*10); f.seek(0); assert f.read()==b"a"*10
shutil.copytree("d2","cpt"); shutil.copy2("p2","p3"); shutil.rmtree("cpt"); shutil.move("p3","p4")
with open("m","w+b") as f:
    f.write(b"\0"*10000); f.flush()
    m=mmap.mmap(f.fileno(),10000); m[5:8]=b"abc"; m.flush(); f.seek(5); assert f.read(3)==b"abc"; m[9000]=65; m.close()
assert open("m","rb").read()[9000]==65
with open("m","rb") as f:
    m=mmap.mmap(f.fileno(),0,prot=mmap.PROT_READ); assert m[5:8]==b"abc"
    m2=mmap.mmap(f.fileno(),0,access=mmap.ACCESS_COPY); m2[0]=66; assert m2[0]==66
subprocess.run(["cat","p2"],stdout=open("p5","w"),check=True); assert os.path.getsize("p5")==100000
subprocess.run(["pwd"],cwd="d2",check=True)
assert os.getcwd()==os.environ["T"]; os.chdir("d2"); assert os.getcwd().endswith("/d2"); os.chdir("..")
assert os.path.realpath("pwl")==os.path.realpath("pw")==os.environ["T"]+"/pw"
assert sorted(e.name for e in os.scandir("e"))==["1"]
d=os.open("e",os.O_RDONLY); assert os.stat("1",dir_fd=d).st_size==2; assert os.listdir(d)==["1"]
os.truncate("p5",10); assert os.path.getsize("p5")==10
assert os.path.samefile("pw","pw2")
import fcntl
f=open("lk","w"); fcntl.flock(f,fcntl.LOCK_EX); fcntl.lockf(f,fcntl.LOCK_EX)
P'
t py-mp 'cat > mp.py <<P
import multiprocessing as mp, os
def w(i):
    open("mp%d"%i,"w").write(str(i)); return i*i
if __name__=="__main__":
    for m in ("fork","spawn","forkserver"):
        mp.set_start_method(m,force=True)
        with mp.Pool(3) as p: assert p.map(w,range(8))==[i*i for i in range(8)]
    assert all(open("mp%d"%i).read()==str(i) for i in range(8))
P
python3 mp.py'
needs flock && t flock-util '( flock -x 9; ( ! flock -n lockf true ) ; sleep 0.3; ! flock -n lockf true; ) 9> lockf; flock lockf true; flock -n lockf true'
needs flock && t flock-shared '( flock -x 9; sleep 0.4 9>&9 & ) 9> lockf; ! flock -n lockf true; sleep 0.6; flock -n lockf true'
t nameless-exec 'exec 3<> nl; echo deep > nl; rm nl; exec bash -c "sleep 0.1; test \"\$(cat /dev/fd/3)\" = deep; cat <&3 | grep -q deep"'
t heredoc-tmpdir 'mkdir tmp; export TMPDIR=$T/tmp; python3 -c "print(\"x\"*99999)" > long; eval "cat <<E > hd2
$(cat long)
E"; cmp long hd2; python3 -c "
import tempfile,subprocess
f=tempfile.TemporaryFile(); f.write(b\"abc\"); f.flush(); f.seek(0)
assert subprocess.run([\"cat\"],stdin=f,stdout=-1).stdout==b\"abc\""'
t devfd 'cat /dev/stdin < pw | cmp - pw; diff <(cat pw) pw; cmp /proc/self/fd/0 pw < pw'
t heredoc 'cat <<E > hd
hello
E
test $(cat hd) = hello'
t truncate 'truncate -s 5000 tr; test $(stat -c %s tr) = 5000; truncate -s 0 tr'
t xattr 'touch xa; python3 -c "import os; os.setxattr(\"xa\",\"user.k\",b\"v\"); assert os.getxattr(\"xa\",\"user.k\")==b\"v\"; assert os.listxattr(\"xa\")==[\"user.k\"]"'
t symlink-in 'ln -sfn $T $OUT/lnk.x; cat $OUT/lnk.x/pw | cmp - pw; echo z > $OUT/lnk.x/newf; test $(cat newf) = z; ls $OUT/lnk.x/ | grep -q newf; ln -sfn $TIDEPOOL_DIR $OUT/lnk.x; ls $OUT/lnk.x/ | grep -q ordinary; cd $OUT/lnk.x; ls | grep -q ordinary; rm $OUT/lnk.x'
t rel-outside 'M=${TIDEPOOL_DIR##*/}; cd $TIDEPOOL_DIR/..; O=$PWD; cat $M/ordinary/pw >/dev/null; ls $M >/dev/null; test -d $M/ordinary; cd $M; test $PWD = $TIDEPOOL_DIR; cd ..; test $PWD = $O; test "$(/bin/pwd)" = $O'
t cd-p 'cd $T/d2; test "$(/bin/pwd)" = $T/d2; cd ..; test "$(pwd -P)" = $T; (cd d2; ls .. | grep -q pw)'
needs rsync && t rsync 'rsync -a d2/ rs/; diff -r d2 rs; rsync -a rs/ $OUT/rs.x/; diff -r rs $OUT/rs.x; rm -r $OUT/rs.x'
needs perl && t perl 'perl -e "open(F,\">pf\");print F 1;close F;opendir(D,\".\");@a=readdir D;die unless grep{\$_ eq \"pf\"}@a"'
needs gcc && t so 'echo "int f(){return 7;}" > so.c; gcc -shared -fPIC so.c -o so.so; python3 -c "import ctypes;assert ctypes.CDLL(\"./so.so\").f()==7"'
t awk 'awk "{print > \"awk_\" NR%2}" pw; cat awk_0 awk_1 | wc -l | grep -q $(wc -l < pw)'
t umask '(umask 077; touch um); test $(stat -c %a um) = 600'
t mkfifo 'mkfifo ff; test -p ff'
t rm-r 'cd ..; rm -rf $T; test ! -e $T'
exit $failed
