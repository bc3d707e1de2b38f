/* Asynchronous I/O of the kernel: refused when it is set up, and only then; libaio is served (libaio.c). Working directory in the pool. */
#include "check.h"
#include <dlfcn.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>

static void by_number(void)
{
    aio_context_t context = 0;
    struct io_uring_params params = {0};
    FAILS(syscall(SYS_io_setup, 8, &context), ENOSYS);
    FAILS(syscall(SYS_io_uring_setup, 8, &params), ENOSYS);
}

/* As older ones have it: the instruction itself. */
static const char libaio[] =
    "static long raw(long n, long a, long b) { long r; __asm__ volatile(\"syscall\" : \"=a\"(r) : \"a\"(n), \"D\"(a), \"S\"(b) : \"rcx\", \"r11\", \"memory\"); return r; }"
    "int io_setup(int n, void **c) { return raw(206, n, (long)c); } int io_queue_init(int n, void **c) { return io_setup(n, c); }";
static const char liburing[] =
    "static long raw(long n, long a, long b) { long r; __asm__ volatile(\"syscall\" : \"=a\"(r) : \"a\"(n), \"D\"(a), \"S\"(b) : \"rcx\", \"r11\", \"memory\"); return r; }"
    "int io_uring_queue_init_params(unsigned n, void *ring, void *p) { return raw(425, n, (long)p); }"
    "int io_uring_queue_init(unsigned n, void *ring, unsigned flags) { char p[120] = {0}; return raw(425, n, (long)p); }";
/* Calls them as a program would that is linked with them; what comes of it is the exit status, negated. */
static const char caller[] =
    "extern int FUNCTION(); int main(void) { long words[64] = {0}; int r = FUNCTION(8, words, words); return r < 0 ? -r : 0; }";

static int calls(const char *function, const char *library, const char *environment)
{
    char command[4096];
    snprintf(command, sizeof command,
             "cc -w -DFUNCTION=%s -o /tmp/aio-$PPID caller.c -L$OUT -Wl,-rpath,$OUT -l:%s && %s /tmp/aio-$PPID; r=$?; rm -f /tmp/aio-$PPID; exit $r",
             function, library, environment);
    int status = system(command);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void by_libraries(void)
{
    put("libaio.c", libaio), put("liburing.c", liburing), put("caller.c", caller);
    put("own.c", "int io_setup(int n, void **c) { return -42; }");
    CHECK(system("cc -w -shared -fPIC -o $OUT/libaio.so.1 libaio.c && cc -w -shared -fPIC -o $OUT/liburing.so.2 liburing.c"
                 " && cc -w -shared -fPIC -o $OUT/libown.so own.c") == 0);
    const char *refuse = "TIDEPOOL_PRELOAD_AIO=refuse";
    CHECK(calls("io_setup", "libaio.so.1", refuse) == ENOSYS && calls("io_queue_init", "libaio.so.1", refuse) == ENOSYS);
    CHECK(calls("io_setup", "libaio.so.1", "") == 0 && calls("io_queue_init", "libaio.so.1", "") == 0);
    CHECK(calls("io_uring_queue_init", "liburing.so.2", "") == ENOSYS);
    CHECK(calls("io_uring_queue_init_params", "liburing.so.2", "") == ENOSYS);
    /* Another function by that name is none of ours, and the switch leaves all alone. */
    CHECK(calls("io_setup", "libown.so", "") == 42);
    CHECK(calls("io_setup", "libaio.so.1", "TIDEPOOL_PRELOAD_AIO=kernel") == 0);
}

/* With the switch: works on other files, and fails on those of the pool, per request. */
static void left_alone(void)
{
    aio_context_t context = 0;
    char block[4096] = "kernel", name[] = "/tmp/aioXXXXXX";
    int fds[2] = {mkstemp(name), open("pool", O_RDWR | O_CREAT, 0644)};
    CHECK(fds[0] >= 0 && fds[1] >= 0 && unlink(name) == 0 && syscall(SYS_io_setup, 8, &context) == 0);
    struct iocb one = {.aio_fildes = fds[0], .aio_lio_opcode = IOCB_CMD_PWRITE, .aio_buf = (unsigned long)block, .aio_nbytes = 4096};
    struct iocb *list[] = {&one};
    struct io_event event;
    CHECK(syscall(SYS_io_submit, context, 1, list) == 1);
    CHECK(syscall(SYS_io_getevents, context, 1, 1, &event, 0) == 1 && event.res == 4096);
    one.aio_fildes = fds[1];
    if (syscall(SYS_io_submit, context, 1, list) == 1)
        CHECK(syscall(SYS_io_getevents, context, 1, 1, &event, 0) == 1 && (long)event.res < 0);
    struct stat st;
    CHECK(fstat(fds[1], &st) == 0 && st.st_size == 0);
}

int main(int count, char **arguments)
{
    if (count > 1 && strcmp(arguments[1], "left alone") == 0) {
        left_alone();
        return 0;
    }
    by_number(), by_libraries();
    setenv("TIDEPOOL_PRELOAD_AIO", "kernel", 1);
    pid_t pid = fork();
    if (pid == 0) {
        execl(arguments[0], arguments[0], "left alone", (char *)0);
        _exit(9);
    }
    CHECK(wait_ok(pid));
    return 0;
}
