/* Pool files in programs that are not intercepted: what they read fails or is the file's. Working directory in the pool. */
#include "check.h"
#include <linux/io_uring.h>

static const char content[] = "the content of the file";

static long past(long n, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return result;
}

/* Nothing, or an error that says so, or what is in the file. */
static void right_or_refused(long got, const char *buf)
{
    if (got > 0)
        fprintf(stderr, "read %ld bytes: %.8s\n", got, buf);
    CHECK(got < 0);
}

static void reads(int fd)
{
    char buf[256] = "";
    struct iovec part = {buf, sizeof buf};
    int ends[2];
    right_or_refused(past(SYS_read, fd, (long)buf, sizeof buf, 0, 0, 0), buf);
    right_or_refused(past(SYS_pread64, fd, (long)buf, sizeof buf, 0, 0, 0), buf);
    right_or_refused(past(SYS_readv, fd, (long)&part, 1, 0, 0, 0), buf);
    CHECK(pipe(ends) == 0);
    right_or_refused(past(SYS_splice, fd, 0, ends[1], 0, 100, 0), buf);
    right_or_refused(past(SYS_sendfile, ends[1], fd, 0, 100, 0, 0), buf);
    CHECK(past(SYS_mmap, 0, 100, PROT_READ, MAP_PRIVATE, fd, 0) < 0);
    CHECK(past(SYS_write, fd, (long)"x", 1, 0, 0, 0) < 0);
    close(ends[0]), close(ends[1]);
}

/* One read by a ring that was made past us. */
static void by_ring(int fd)
{
    struct io_uring_params params = {0};
    char buf[256] = "";
    long ring = past(SYS_io_uring_setup, 4, (long)&params, 0, 0, 0, 0);
    if (ring < 0)
        return; /* no rings here */
    char *sq = mmap(0, params.sq_off.array + 64, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    char *cq = mmap(0, params.cq_off.cqes + 16 * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_CQ_RING);
    struct io_uring_sqe *sqe = mmap(0, 4 * sizeof *sqe, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    CHECK(sq != MAP_FAILED && cq != MAP_FAILED && sqe != MAP_FAILED);
    *sqe = (struct io_uring_sqe){.opcode = IORING_OP_READ, .fd = fd, .addr = (unsigned long)buf, .len = sizeof buf};
    ((unsigned *)(sq + params.sq_off.array))[0] = 0;
    __atomic_store_n((unsigned *)(sq + params.sq_off.tail), 1, __ATOMIC_RELEASE);
    CHECK(past(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) == 1);
    right_or_refused(((struct io_uring_cqe *)(cq + params.cq_off.cqes))->res, buf);
    close(ring);
}

/* After a fork, a dup, an exec and a message the file is known to the kernel by a placeholder. */
static void shared(void)
{
    int fd = open("file", O_RDWR), twin, ends[2];
    reads(fd);
    pid_t pid = fork();
    if (pid == 0) {
        reads(fd), by_ring(fd);
        _exit(0);
    }
    CHECK(wait_ok(pid));
    reads(fd), by_ring(fd);
    CHECK((twin = dup(fd)) >= 0);
    reads(twin);
    char buf[64], control[CMSG_SPACE(sizeof(int))] = "";
    struct iovec part = {buf, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && sendmsg(ends[0], &message, 0) == 1 && recvmsg(ends[1], &message, 0) == 1);
    memcpy(&twin, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof twin);
    reads(twin);
    /* And seen by us it is the file, whatever its number. */
    CHECK(pread(twin, buf, sizeof buf, 0) == sizeof content - 1 && memcmp(buf, content, sizeof content - 1) == 0);
    CHECK((fcntl(twin, F_GETFL) & O_ACCMODE) == O_RDWR);
    close(fd), close(twin);
}

/* A static program with the file as its standard input, as a Go program is one. */
static void by_static_program(void)
{
    put("static.c", "#include <unistd.h>\n#include <stdio.h>\nint main(void) { char b[256]; long n = read(0, b, 256); if (n > 0) write(1, b, n);"
                    "if (n < 0) perror(\"read\"); return n < 0 ? 3 : 0; }");
    CHECK(system("cc -static -o $OUT/static static.c") == 0);
    CHECK(WEXITSTATUS(system("$OUT/static < file > said 2> failed")) == 3);
    CHECK(system("test ! -s said && $OUT/static < /dev/null && cat < file | grep -q content") == 0);
    CHECK(WEXITSTATUS(system("( $OUT/static ) < file 2> failed")) == 3);
}

/* With all numbers taken a file that came from elsewhere is still known. */
static void without_room(void)
{
    int fd = open("file", O_RDONLY), count = 0, last = -1;
    char buf[64];
    pid_t pid = fork();
    if (pid == 0) {
        CHECK(access("file", R_OK) == 0);
        for (int one; (one = open("/dev/null", O_RDONLY)) >= 0; count++)
            last = one;
        CHECK(errno == EMFILE && count > 10);
        CHECK(pread(fd, buf, sizeof buf, 0) == sizeof content - 1);
        CHECK(close(last) == 0 && past(SYS_dup2, fd, last, 0, 0, 0, 0) == last && pread(last, buf, sizeof buf, 0) == sizeof content - 1);
        _exit(0);
    }
    CHECK(wait_ok(pid) && close(fd) == 0);
}

int main(void)
{
    put("file", content);
    shared(), by_static_program(), without_room();
    return 0;
}
