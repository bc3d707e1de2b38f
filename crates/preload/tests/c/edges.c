/* The edges of calls, as the kernel has them. Working directory in the pool; all of it holds elsewhere without the library. */
#include "check.h"
#include <sys/inotify.h>
#include <sys/xattr.h>
#include <grp.h>

/* Those in between that nothing is mapped at are not seen: docs/guide/preload.md. */
static void *bad[] = {(void *)8, (void *)-4096L, (void *)(1UL << 56)};

static void vectors(void)
{
    char b[64] = "hello";
    int f = open("vectors", O_RDWR | O_CREAT | O_TRUNC, 0644);
    struct iovec overflow[2] = {{b, 64}, {b, (size_t)-1}}, sum[2] = {{b, (size_t)-1 / 2}, {b, (size_t)-1 / 2}}, one = {b, 5};
    FAILS(writev(f, overflow, 2), EINVAL);
    FAILS(readv(f, overflow, 2), EINVAL);
    FAILS(pwritev(f, overflow, 2, 0), EINVAL);
    FAILS(preadv(f, overflow, 2, 0), EINVAL);
    CHECK(writev(f, sum, 2) == -1 && (errno == EINVAL || errno == EFAULT));
    volatile int few = -1, much = 1025;
    FAILS(writev(f, &one, few), EINVAL);
    FAILS(readv(f, &one, much), EINVAL);
    CHECK(writev(f, &one, 0) == 0 && readv(f, &one, 0) == 0);
    struct stat st;
    CHECK(fstat(f, &st) == 0 && st.st_size == 0 && lseek(f, 0, SEEK_CUR) == 0);
    close(f);
}

static void pointers(void)
{
    put("pointers", "hello");
    int f = open("pointers", O_RDWR), d = open(".", O_RDONLY | O_DIRECTORY);
    for (int i = 0; i < 3; i++) {
        void *p = bad[i];
        FAILS(read(f, p, 5), EFAULT);
        FAILS(pread(f, p, 5, 0), EFAULT);
        FAILS(write(f, p, 5), EFAULT);
        FAILS(pwrite(f, p, 5, 0), EFAULT);
        struct iovec one = {p, 5};
        FAILS(readv(f, &one, 1), EFAULT);
        FAILS(writev(f, &one, 1), EFAULT);
        FAILS(stat("pointers", p), EFAULT);
        FAILS(fstat(f, p), EFAULT);
        FAILS(open(p, O_RDONLY), EFAULT);
        FAILS(unlink(p), EFAULT);
        FAILS(rename("pointers", p), EFAULT);
        FAILS(link("pointers", p), EFAULT);
        FAILS(link(p, "x"), EFAULT);
        FAILS(symlink(p, "x"), EFAULT);
        char room[8];
        FAILS(readlink(p, room, sizeof room), EFAULT);
        FAILS(getxattr(p, "user.a", 0, 0), EFAULT);
        FAILS(setxattr("pointers", "user.a", p, 5, 0), EFAULT);
        FAILS(syscall(SYS_getdents64, d, p, 4096), EFAULT);
        FAILS(fcntl(f, F_SETLK, p), EFAULT);
        FAILS(sendfile(f, f, p, 5), EFAULT);
    }
    CHECK(lseek(f, 0, SEEK_CUR) == 0);
    FAILS(sendfile(-1, f, NULL, 5), EBADF);
    CHECK(lseek(f, 0, SEEK_CUR) == 0);
    int o = open("pointers", O_RDONLY);
    FAILS(sendfile(o, f, NULL, 5), EBADF);
    CHECK(lseek(f, 0, SEEK_CUR) == 0);
    close(o), close(f), close(d);
    expect("pointers", "hello");
}

static void long_paths(void)
{
    static char path[6100], text[6100];
    struct stat st;
    mkdir("sub", 0755);
    for (int length = 4094; length <= 5000; length += length < 4098 ? 1 : 451) {
        int n = 0;
        while (n + 6 < length)
            n += sprintf(path + n, "sub/../");
        n = n > length ? length : n;
        while (n < length)
            path[n++] = '/';
        path[length] = 0;
        int code = length < 4096 ? 0 : ENAMETOOLONG;
        if (code == 0) {
            CHECK(stat(path, &st) == 0);
            continue;
        }
        FAILS(stat(path, &st), code);
        FAILS(open(path, O_RDONLY), code);
        FAILS(open(path, O_CREAT | O_WRONLY, 0644), code);
        FAILS(mkdir(path, 0755), code);
        FAILS(rename("sub", path), code);
        FAILS(chdir(path), code);
        FAILS(access(path, F_OK), code);
        memset(text, 't', length), text[length] = 0;
        FAILS(symlink(text, "toolong"), code);
        FAILS(execl(path, path, (char *)0), code);
    }
}

static void dots(void)
{
    CHECK(mkdir("dots", 0755) == 0 && mkdir("dots/in", 0755) == 0 && mkdir("dots/empty", 0755) == 0);
    FAILS(rmdir("."), EINVAL);
    FAILS(rmdir("dots/in/."), EINVAL);
    FAILS(rmdir("dots/in/./"), EINVAL);
    FAILS(rmdir("dots/in/.."), ENOTEMPTY);
    FAILS(rmdir("dots/in/../"), ENOTEMPTY);
    FAILS(rmdir("dots/none/."), ENOENT);
    FAILS(rmdir("dots"), ENOTEMPTY);
    FAILS(rename(".", "elsewhere"), EBUSY);
    FAILS(rename("dots/in", "dots/empty/."), EBUSY);
    CHECK(rmdir("dots/in/") == 0 && rmdir("dots/empty") == 0 && rmdir("dots") == 0);
    int f = open("ahead", O_RDWR | O_CREAT, 0644), w = open("ahead", O_WRONLY), d = open(".", O_RDONLY);
    CHECK(readahead(f, 0, 4096) == 0 && posix_fadvise(f, 0, 0, POSIX_FADV_WILLNEED) == 0);
    FAILS(readahead(w, 0, 4096), EBADF);
    FAILS(readahead(d, 0, 4096), EINVAL);
    close(f), close(w), close(d);
}

static int mode_of(const char *path)
{
    struct stat st;
    CHECK(lstat(path, &st) == 0);
    return st.st_mode & 07777;
}

static void group_bits(void)
{
    if (geteuid() != 0)
        return;
    put("bits", "x");
    CHECK(chmod("bits", 06755) == 0 && chown("bits", 1000, 1000) == 0 && mode_of("bits") == 0755);
    CHECK(chmod("bits", 06745) == 0 && chown("bits", 1000, 1000) == 0 && mode_of("bits") == 02745);
    CHECK(chmod("bits", 06755) == 0 && chown("bits", -1, -1) == 0);
    CHECK(mkdir("bitsdir", 0755) == 0 && chmod("bitsdir", 06755) == 0 && chown("bitsdir", 1000, 1000) == 0 && mode_of("bitsdir") == 06755);
    CHECK(chmod(".", 0777) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        gid_t groups[] = {2000};
        /* Sessions with the daemons are made before: a pool belongs to one user. */
        CHECK(chmod("bits", 0755) == 0 && chmod("bitsdir", 0755) == 0 && setgroups(1, groups) == 0 && setgid(2000) == 0 && setuid(1000) == 0);
        /* Of a group that is not one's own. */
        CHECK(chmod("bits", 06755) == 0 && mode_of("bits") == 04755);
        CHECK(chmod("bitsdir", 02755) == 0 && mode_of("bitsdir") == 0755);
        CHECK(chown("bits", -1, 2000) == 0 && mode_of("bits") == 0755);
        CHECK(chmod("bits", 06755) == 0 && mode_of("bits") == 06755);
        _exit(0);
    }
    CHECK(wait_ok(pid));
}

static void attributes(void)
{
    CHECK(symlink("nowhere", "link") == 0 && mkfifo("fifo", 0644) == 0);
    put("plain", "x");
    FAILS(lsetxattr("link", "user.a", "1", 1, 0), EPERM);
    FAILS(setxattr("fifo", "user.a", "1", 1, 0), EPERM);
    FAILS(lremovexattr("link", "user.a"), EPERM);
    FAILS(lgetxattr("link", "user.a", 0, 0), ENODATA);
    FAILS(getxattr("fifo", "user.a", 0, 0), ENODATA);
    CHECK(lsetxattr("plain", "user.a", "1", 1, 0) == 0 && setxattr(".", "user.a", "1", 1, 0) == 0 && removexattr(".", "user.a") == 0);
    char buf[64] = "";
    int fd = open("link", O_PATH | O_NOFOLLOW);
    CHECK(fd >= 0 && readlinkat(fd, "", buf, sizeof buf) == 7 && memcmp(buf, "nowhere", 7) == 0);
    close(fd);
    fd = open("plain", O_PATH);
    CHECK(readlinkat(fd, "", buf, sizeof buf) == -1 && (errno == ENOENT || errno == EINVAL));
    close(fd);
    FAILS(readlink("", buf, sizeof buf), ENOENT);
}

static void working_directory(void)
{
    char start[4096], now[4096], want[8192];
    CHECK(getcwd(start, sizeof start) && mkdir("A", 0755) == 0 && mkdir("A/B", 0755) == 0 && chdir("A/B") == 0);
    CHECK(rename("../B", "../C") == 0 && getcwd(now, sizeof now));
    snprintf(want, sizeof want, "%s/A/C", start);
    CHECK(strcmp(now, want) == 0 && chdir("..") == 0 && getcwd(now, sizeof now));
    snprintf(want, sizeof want, "%s/A", start);
    CHECK(strcmp(now, want) == 0 && chdir("C") == 0);
    pid_t pid = fork();
    if (pid == 0) {
        snprintf(want, sizeof want, "%s/A", start), snprintf(now, sizeof now, "%s/D", start);
        _exit(rename(want, now) != 0);
    }
    CHECK(wait_ok(pid) && getcwd(now, sizeof now));
    snprintf(want, sizeof want, "%s/D/C", start);
    CHECK(strcmp(now, want) == 0 && realpath(".", now) && strcmp(now, want) == 0);
    CHECK(readlink("/proc/self/cwd", now, sizeof now) == (ssize_t)strlen(want) && memcmp(now, want, strlen(want)) == 0);
    put("here", "x");
    CHECK(access("../C/here", F_OK) == 0 && unlink("here") == 0);
    snprintf(want, sizeof want, "%s/D/C", start);
    CHECK(rmdir(want) == 0);
    FAILS(getcwd(now, sizeof now) ? 0 : -1, ENOENT);
    FAILS(open("x", O_CREAT | O_WRONLY, 0644), ENOENT);
    CHECK(chdir(start) == 0);
}

int main(int count, char **arguments)
{
    static const struct { const char *name; void (*test)(void); } all[] = {
        {"vectors", vectors}, {"pointers", pointers}, {"long_paths", long_paths}, {"dots", dots}, {"group_bits", group_bits},
        {"attributes", attributes}, {"working_directory", working_directory}};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        if (count < 3 || strcmp(arguments[2], all[i].name) == 0)
            all[i].test();
    return 0;
}
