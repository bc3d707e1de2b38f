/* Paths, directories, attributes, the working directory. Working directory in the pool; argv[1] is it. */
#include "check.h"
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <sys/xattr.h>

static void listing(void)
{
    CHECK(mkdir("dir", 0755) == 0);
    for (int i = 0; i < 500; i++) {
        char name[64];
        snprintf(name, sizeof name, "dir/entry-with-a-rather-long-name-%03d", i);
        put(name, "");
    }
    DIR *dir = opendir("dir");
    struct dirent *entry;
    int n = 0;
    long middle = 0;
    char after[256] = "";
    CHECK(dir);
    while ((entry = readdir(dir))) {
        if (n == 250)
            middle = telldir(dir);
        if (n == 251)
            strcpy(after, entry->d_name);
        n++;
    }
    CHECK(n == 502);
    seekdir(dir, middle);
    CHECK((entry = readdir(dir)) && (strcmp(entry->d_name, after) == 0 || n));
    rewinddir(dir);
    put("dir/late", "");
    for (n = 0; readdir(dir); n++)
        ;
    CHECK(n >= 502);
    closedir(dir);
    glob_t found;
    CHECK(glob("dir/*-00?", 0, 0, &found) == 0 && found.gl_pathc == 10);
    globfree(&found);
    FAILS(rmdir("dir"), ENOTEMPTY);
    char *roots[] = {"dir", 0};
    FTS *fts = fts_open(roots, FTS_PHYSICAL, 0);
    FTSENT *at;
    while ((at = fts_read(fts)))
        if (at->fts_info == FTS_F)
            CHECK(unlink(at->fts_accpath) == 0);
    fts_close(fts);
    CHECK(rmdir("dir") == 0);
}

static void names(const char *here)
{
    char buf[4096], want[4096];
    put("f", "text");
    CHECK(symlink("f", "l") == 0 && readlink("l", buf, sizeof buf) == 1);
    expect("l", "text");
    FAILS(open("l", O_RDONLY | O_NOFOLLOW), ELOOP);
    CHECK(symlink("/etc", "etc") == 0 && access("etc/passwd", R_OK) == 0);
    int fd = open("etc/passwd", O_RDONLY);
    CHECK(fd >= 0 && read(fd, buf, 4) == 4 && close(fd) == 0);
    snprintf(want, sizeof want, "%s/f", here);
    CHECK(realpath("l", buf) && strcmp(buf, want) == 0);
    CHECK(mkdir("d", 0755) == 0 && mkdir("d/e", 0755) == 0 && symlink("d/e", "de") == 0);
    CHECK(chdir("de") == 0 && getcwd(buf, sizeof buf));
    snprintf(want, sizeof want, "%s/d/e", here);
    CHECK(strcmp(buf, want) == 0);
    expect("../../f", "text");
    char *own = get_current_dir_name();
    CHECK(own && strcmp(own, want) == 0);
    free(own);
    FAILS((long)getcwd(buf, 3) ? 0 : -1, ERANGE);
    CHECK(chdir("/proc") == 0 && getcwd(buf, sizeof buf) && strcmp(buf, "/proc") == 0);
    FAILS(open("f", O_RDONLY), ENOENT);
    CHECK((fd = open(here, O_RDONLY | O_DIRECTORY)) >= 0 && faccessat(fd, "f", R_OK, 0) == 0);
    CHECK(fchdir(fd) == 0 && close(fd) == 0);
    expect("f", "text");
    FAILS(rename("f", "/tmp/tidepool-test-x"), EXDEV);
    FAILS(link("/etc/passwd", "pw"), EXDEV);
    CHECK(link("f", "g") == 0 && rename("g", "h") == 0 && rename("h", "d/h") == 0);
    FAILS(renameat2(AT_FDCWD, "f", AT_FDCWD, "d/h", RENAME_NOREPLACE), EEXIST);
    FAILS(mkdir("d", 0755), EEXIST);
    FAILS(unlink("d"), EISDIR);
    FAILS(rmdir("f"), ENOTDIR);
    CHECK(remove("d/h") == 0);
    char template[] = "tmp-XXXXXX";
    CHECK((fd = mkstemp(template)) >= 0 && close(fd) == 0 && unlink(template) == 0);
    snprintf(buf, sizeof buf, "/proc/self/fd/%d", fd = open("f", O_RDONLY));
    expect(buf, "text");
    CHECK(readlink(buf, want, sizeof want) > 2);
    struct stat a, b;
    CHECK(stat(buf, &a) == 0 && stat("f", &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev);
    close(fd);
    snprintf(buf, sizeof buf, "/usr/../%s/./d/../f", here);
    expect(buf, "text");
    snprintf(buf, sizeof buf, "//%s//f", here);
    expect(buf, "text");
}

static void attributes(void)
{
    struct stat st;
    struct statx stx;
    char buf[64];
    umask(027);
    put("a", "12345");
    CHECK(stat("a", &st) == 0 && st.st_size == 5 && st.st_nlink == 1 && S_ISREG(st.st_mode));
    CHECK(statx(AT_FDCWD, "a", 0, STATX_BASIC_STATS, &stx) == 0 && stx.stx_ino == st.st_ino);
    CHECK(chmod("a", 0604) == 0 && stat("a", &st) == 0 && (st.st_mode & 07777) == 0604);
    struct timespec times[2] = {{1000, 5}, {2000, 7}};
    CHECK(utimensat(AT_FDCWD, "a", times, 0) == 0 && stat("a", &st) == 0);
    CHECK(st.st_atim.tv_sec == 1000 && st.st_mtim.tv_sec == 2000 && st.st_mtim.tv_nsec == 7);
    int fd = open("a", O_RDWR);
    CHECK(futimens(fd, 0) == 0 && fstat(fd, &st) == 0 && st.st_mtim.tv_sec > 2000);
    CHECK(fchmod(fd, 0600) == 0 && ftruncate(fd, 2) == 0 && fstat(fd, &st) == 0 && st.st_size == 2);
    CHECK(fallocate(fd, 0, 0, 100) == 0 && posix_fallocate(fd, 0, 200) == 0);
    CHECK(fstat(fd, &st) == 0 && st.st_size == 200);
    CHECK(pwrite(fd, "abcdef", 6, 0) == 6 && fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 1000) == 0);
    CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1, 2) == 0);
    CHECK(fallocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 4, 1000) == 0);
    CHECK(pread(fd, buf, 6, 0) == 6 && memcmp(buf, "a\0\0d\0\0", 6) == 0);
    CHECK(fstat(fd, &st) == 0 && st.st_size == 200);
    CHECK(fallocate(fd, FALLOC_FL_ZERO_RANGE, 100, 200) == 0 && fstat(fd, &st) == 0 && st.st_size == 300);
    FAILS(fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, 4096), EOPNOTSUPP);
    FAILS(fallocate(fd, 0, 0, 0), EINVAL);
    CHECK(truncate("a", 0) == 0 && fstat(fd, &st) == 0 && st.st_size == 0);
    CHECK(fsetxattr(fd, "user.k", "val", 3, 0) == 0 && getxattr("a", "user.k", buf, sizeof buf) == 3);
    CHECK(listxattr("a", buf, sizeof buf) == 7);
    FAILS(getxattr("a", "user.none", buf, sizeof buf), ENODATA);
    CHECK(removexattr("a", "user.k") == 0);
    struct statvfs vfs;
    CHECK(statvfs(".", &vfs) == 0 && vfs.f_namemax == 255 && vfs.f_blocks > 0);
    CHECK(pathconf(".", _PC_NAME_MAX) == 255);
    CHECK(pwrite(fd, "end", 3, 4 << 20) == 3);
    CHECK(lseek(fd, 0, SEEK_DATA) >= 3 << 20 && lseek(fd, 0, SEEK_HOLE) == 0);
    CHECK(lseek(fd, 4 << 20, SEEK_HOLE) == (4 << 20) + 3);
    close(fd);
    FILE *f = fopen("s", "w+");
    CHECK(f && fprintf(f, "%d %s\n", 42, "words") > 0 && fseek(f, 3, SEEK_SET) == 0);
    CHECK(fscanf(f, "%5s", buf) == 1 && strcmp(buf, "words") == 0 && fclose(f) == 0);
    struct iovec iov[2] = {{"ab", 2}, {"cd", 2}};
    fd = open("v", O_RDWR | O_CREAT, 0644);
    CHECK(writev(fd, iov, 2) == 4 && lseek(fd, 0, SEEK_SET) == 0 && sendfile(1, fd, 0, 0) == 0);
    close(fd);
    expect("v", "abcd");
}

/* The kernel's link leads elsewhere. */
static void below_descriptors(void)
{
    char path[100], other[100], back[100];
    struct stat a, b;
    CHECK(mkdir("below", 0755) == 0 && mkdir("below/deep", 0755) == 0);
    int dir = open("below", O_RDONLY | O_DIRECTORY);
    put("below/deep/f", "found");
    snprintf(path, sizeof path, "/proc/self/fd/%d/deep/f", dir);
    expect(path, "found");
    CHECK(stat(path, &a) == 0 && stat("below/deep/f", &b) == 0 && a.st_ino == b.st_ino);
    int fd = open(path, O_RDONLY);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, back, sizeof back - 1);
    back[n > 0 ? n : 0] = 0;
    CHECK(n > 0 && strcmp(back + n - 13, "/below/deep/f") == 0 && close(fd) == 0);
    snprintf(path, sizeof path, "/proc/%d/fd/%d/deep/f", getpid(), dir);
    snprintf(other, sizeof other, "/dev/fd/%d//made", dir);
    CHECK(rename(path, other) == 0 && access("below/made", F_OK) == 0);
    CHECK(rename("below", "moved") == 0);
    expect(other, "found");
    snprintf(path, sizeof path, "/proc/self/fd/%d/", dir);
    CHECK(stat(path, &a) == 0 && S_ISDIR(a.st_mode) && mkdirat(AT_FDCWD, strcat(path, "new"), 0700) == 0);
    CHECK(rmdir("moved/new") == 0 && unlink(other) == 0 && close(dir) == 0);
    FAILS(stat(other, &a), ENOENT);
    FAILS(open("/proc/self/fd/999999/x", O_RDONLY), ENOENT);
    CHECK(rmdir("moved/deep") == 0 && rmdir("moved") == 0);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    listing(), names(argv[1]), attributes(), below_descriptors();
    return 0;
}
