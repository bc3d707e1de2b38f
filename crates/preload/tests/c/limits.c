/* ulimit -f: what ends behind the limit is cut there, what begins behind it fails, nothing else is harmed. Working directory
 * in the pool. All of it holds in any directory without the preload library. */
#include "check.h"
#include <sys/resource.h>

enum { BLOCK = 4096, FILE_BYTES = 1000000 };
static volatile sig_atomic_t told;
static void note(int signal)
{
    (void)signal;
    told++;
}

static void limit(rlim_t bytes)
{
    struct rlimit now;
    CHECK(getrlimit(RLIMIT_FSIZE, &now) == 0);
    now.rlim_cur = bytes;
    CHECK(setrlimit(RLIMIT_FSIZE, &now) == 0);
}

/* The call fails, and the signal has come. */
#define EXCEEDS(x)                                                                                \
    do {                                                                                          \
        told = 0;                                                                                 \
        FAILS(x, EFBIG);                                                                          \
        CHECK(told == 1);                                                                         \
    } while (0)

static char letters[FILE_BYTES];

/* A file that was written in many pieces, so that it is lent. */
static int filled(const char *name, int flags)
{
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | flags, 0644);
    CHECK(fd >= 0);
    for (int at = 0; at < FILE_BYTES; at += 1000)
        CHECK(write(fd, letters + at, 1000) == 1000);
    return fd;
}

static void holds(const char *name, int from, int count, char letter)
{
    static char found[FILE_BYTES + BLOCK];
    int fd = open(name, O_RDONLY);
    CHECK(read(fd, found, sizeof found) >= FILE_BYTES);
    for (int i = 0; i < FILE_BYTES; i++)
        if (found[i] != (i >= from && i < from + count ? letter : letters[i])) {
            fprintf(stderr, "%s at %d: %d\n", name, i, found[i]);
            _exit(1);
        }
    close(fd);
}

static void writes(void)
{
    static const int limits[] = {100000, 4096 * 25, 4096 * 25 + 1, 1, 524288, 524289, 900001};
    char many[20000];
    memset(many, 'w', sizeof many);
    for (unsigned i = 0; i < sizeof limits / sizeof *limits; i++) {
        int most = limits[i], room = most < 5000 ? most : 5000;
        int fd = filled("written", 0);
        limit(most);
        EXCEEDS(pwrite(fd, "xyz", 3, most));
        EXCEEDS(pwrite(fd, "xyz", 3, most + 300000));
        CHECK(pwrite(fd, many, 0, most + 10) == 0);
        CHECK(pwrite(fd, many, sizeof many, most - room) == (room < (int)sizeof many ? room : (int)sizeof many));
        holds("written", most - room, room, 'w');
        CHECK(lseek(fd, most - 1, SEEK_SET) == most - 1 && write(fd, "w??", 3) == 1 && lseek(fd, 0, SEEK_CUR) == most);
        EXCEEDS(write(fd, "?", 1));
        CHECK(lseek(fd, 0, SEEK_CUR) == most);
        struct iovec parts[3] = {{many, 1}, {many, 100}, {many, 100}};
        CHECK(pwritev(fd, parts, 3, most - 1) == 1);
        CHECK(lseek(fd, most - 1, SEEK_SET) >= 0 && writev(fd, parts, 3) == 1);
        EXCEEDS(writev(fd, parts, 3));
        EXCEEDS(pwritev(fd, parts, 3, most));
        holds("written", most - room, room, 'w');
        limit(RLIM_INFINITY);
        CHECK(pwrite(fd, "w", 1, most) == 1 && close(fd) == 0);
        holds("written", most - room, room + 1, 'w');
    }
}

static void appends(void)
{
    int fd = filled("appended", O_APPEND);
    limit(FILE_BYTES + 2);
    CHECK(write(fd, "abc", 3) == 2);
    EXCEEDS(write(fd, "d", 1));
    struct stat st;
    CHECK(fstat(fd, &st) == 0 && st.st_size == FILE_BYTES + 2);
    limit(RLIM_INFINITY);
    close(fd);
    FILE *file = fopen("buffered", "w");
    limit(10);
    CHECK(fputs("more than ten letters", file) >= 0);
    told = 0;
    CHECK(fflush(file) == EOF && errno == EFBIG && told == 1);
    fclose(file);
    limit(RLIM_INFINITY);
    expect("buffered", "more than ");
}

static void sizes(void)
{
    int fd = filled("sized", 0), other = filled("other", 0);
    struct stat st;
    limit(500000);
    CHECK(ftruncate(fd, 900000) == 0 && ftruncate(fd, 700000) == 0);
    EXCEEDS(ftruncate(fd, 700001));
    EXCEEDS(truncate("sized", 700001));
    EXCEEDS(fallocate(fd, 0, 600000, 200000));
    CHECK(truncate("sized", 400000) == 0 && ftruncate(fd, 500000) == 0);
    told = 0;
    CHECK(posix_fallocate(fd, 0, 500001) == EFBIG && told == 1 && posix_fallocate(fd, 0, 500000) == 0);
    CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 450000, 100) == 0);
    loff_t from = 0, to = 499000;
    CHECK(copy_file_range(other, &from, fd, &to, 3000, 0) == 1000 && to == 500000 && from == 1000);
    EXCEEDS(copy_file_range(other, &from, fd, &to, 3000, 0));
    off_t start = 10;
    CHECK(lseek(fd, 499999, SEEK_SET) >= 0 && sendfile(fd, other, &start, 100) == 1 && start == 11);
    EXCEEDS(sendfile(fd, other, &start, 100));
    CHECK(start == 11 && fstat(fd, &st) == 0 && st.st_size == 500000);
    limit(RLIM_INFINITY);
    close(fd), close(other);
    holds("other", 0, 0, 0);
}

/* Stores in a mapping are not limited; what is in memory is written back whole. */
static void mapped(void)
{
    int fd = filled("mapped", 0);
    char *view = mmap(0, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(view != MAP_FAILED);
    limit(100001);
    memset(view + 99000, 'm', 300000);
    CHECK(msync(view, FILE_BYTES, MS_SYNC) == 0);
    holds("mapped", 99000, 300000, 'm');
    CHECK(munmap(view, FILE_BYTES) == 0 && close(fd) == 0);
    limit(RLIM_INFINITY);
}

/* Without a handler the program ends, and only the program. */
static void ends(void)
{
    int status, fd = filled("ended", 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit none = {0};
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGXFSZ, SIG_DFL);
        limit(100001);
        CHECK(pwrite(fd, "eee", 3, 100000) == 1);
        pwrite(fd, "eee", 3, 100001);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ);
    holds("ended", 100000, 1, 'e');
    close(fd);
    /* What is made in memory for children, programs and mappings does not end anybody. */
    signal(SIGXFSZ, SIG_DFL);
    fd = open("ended", O_RDONLY);
    limit(20000);
    pid = fork();
    if (pid == 0) {
        char c;
        dup2(fd, 0);
        CHECK(read(0, &c, 1) == 1 && c == letters[0]);
        _exit(system("head -c 3 >/dev/null"));
    }
    CHECK(wait_ok(pid));
    limit(RLIM_INFINITY);
    signal(SIGXFSZ, note);
}

int main(void)
{
    for (int i = 0; i < FILE_BYTES; i++)
        letters[i] = 'A' + i % 23;
    signal(SIGXFSZ, note);
    writes(), appends(), sizes(), mapped(), ends();
    return 0;
}
