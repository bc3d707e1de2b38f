# Access control lists do in the pool what they do on a local file system, and come and go with copies.
set -eu
umask 022
local=$(mktemp -d)
trap 'rm -rf "$local"' EXIT
touch "$local/x"
setfacl -m u:1111:rw "$local/x" 2>/dev/null || { echo "SKIPPED: no lists on $local"; exit 0; }
rm "$local/x"

# All lists below a directory, in the order of names. Not of FIFOs: rsync opens them for it, which preload refuses.
lists() { (cd "$1" && find . ! -type l ! -type p | sort | xargs -d '\n' getfacl -cp); }

# What is done and what is seen; run in a directory.
try() {
    cd "$1"
    show() { stat -c '%n %a %F' "$@"; getfacl -cp "$@"; }
    echo text > f; chmod 640 f; show f
    setfacl -m u:1111:rw,g:2222:r f; show f; ls -l f | cut -c1-11
    chmod 604 f; show f; chmod u=rwx,g=rw f; show f
    setfacl -x u:1111 f; show f; setfacl -m m::r f; show f; setfacl -b f; show f
    ! setfacl -d -m u:1111:r f 2>/dev/null
    ln -s f l; ! setfacl -P -m u:1:r l 2>/dev/null || true
    mkdir d; setfacl -d -m u:1111:rwx,g:2222:rx,o::- d; show d
    for mask in 022 077 000; do
        (umask $mask; mkdir d/dir$mask; echo > d/file$mask; mkfifo -m 666 d/fifo$mask; ln -s f d/link$mask; cp f d/copy$mask
            python3 -c "import os; os.close(os.open('d/tight$mask', os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)); os.mkdir('d/closed$mask', 0o700)")
        show d/dir$mask d/file$mask d/fifo$mask d/copy$mask d/tight$mask d/closed$mask
        mkdir d/dir$mask/deep; show d/dir$mask/deep
    done
    mv d/file022 moved; show moved; mv moved d/back; show d/back
    setfacl -k d; show d; touch d/after; show d/after
    setfacl -m u:1111:rwx,d:g::rx,d:o::- d; chmod 2750 d; mkdir d/sub; touch d/plain; show d d/sub d/plain
    setfacl -m u:1111:rw,u:3333:x,g:4444:rw f; touch -d 2001-01-01 f
    cp -p f p; cp -a f a; cp -a d e; rsync -aA f d r/; tar --acls -cf t f d; mkdir x; tar --acls -xf t -C x
    show f p a r/f x/f d e r/d x/d; lists d > 1; for copy in e r/d x/d; do lists $copy | cmp - 1; done
    python3 - <<'P'
import os, errno
def fails(code, *a):
    try: os.setxattr(*a)
    except OSError as e: assert e.errno == code, (e.errno, a)
    else: raise SystemExit(f'{a} did not fail')
acl, default = 'system.posix_acl_access', 'system.posix_acl_default'
value = os.getxattr('f', acl)
fails(errno.EINVAL, 'f', acl, value[:-8])
fails(errno.EINVAL, 'f', acl, value[:9])
fails(errno.EACCES, 'f', default, value)
fd = os.open('f', os.O_RDONLY)
assert os.getxattr(fd, acl) == value and acl in os.listxattr('f')
os.setxattr(fd, acl, value)
os.removexattr(fd, acl)
try: os.getxattr('f', acl)
except OSError as e: assert e.errno == errno.ENODATA
else: raise SystemExit('still there')
assert acl not in os.listxattr('f')
P
}
pool=$(mkdir t && cd t && pwd)
(try "$local") > "$local.seen" 2>&1 || { cat "$local.seen"; echo "the local file system fails"; exit 1; }
(try "$pool") > seen 2>&1 || { tail -5 seen; exit 1; }
diff "$local.seen" seen
rm "$local.seen"
# There and back: a copy out has what a copy in had.
setfacl -m u:1111:r "$local/d"
cp -a "$local/d" in; cp -a in "$local/out"
lists "$local/d" > one; lists in | cmp - one; lists "$local/out" | cmp - one
