/* Work on small stacks: threads of the least size, glibc's own ones for POSIX AIO, contexts that a program switches to. Working
 * directory in the pool. All of it holds in any directory without the preload library. */
#include "check.h"
#include <aio.h>
#include <limits.h>
#include <ucontext.h>

/* Small, and beyond what a file keeps in its page. */
static const size_t sizes[] = {5, 5000, 700000};
static char want[700000], got[700000];

static void works(const char *name)
{
    struct stat st;
    for (int i = 0; i < 3; i++) {
        int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
        CHECK(fd >= 0 && pwrite(fd, want, sizes[i], 0) == (ssize_t)sizes[i] && fsync(fd) == 0);
        memset(got, 0, sizes[i]);
        CHECK(pread(fd, got, sizes[i], 0) == (ssize_t)sizes[i] && memcmp(got, want, sizes[i]) == 0);
        CHECK(flock(fd, LOCK_EX) == 0 && fstat(fd, &st) == 0 && st.st_size == (off_t)sizes[i] && close(fd) == 0);
    }
    CHECK(rename(name, "moved") == 0 && stat(name, &st) == -1 && errno == ENOENT && unlink("moved") == 0);
}

static void *in_thread(void *name)
{
    works(name);
    return NULL;
}

/* Of this many bytes beyond the least. */
static void threads(size_t more)
{
    pthread_attr_t attr;
    pthread_t thread;
    CHECK(pthread_attr_init(&attr) == 0 && pthread_attr_setstacksize(&attr, PTHREAD_STACK_MIN + more) == 0);
    CHECK(pthread_create(&thread, &attr, in_thread, "thread") == 0 && pthread_join(thread, NULL) == 0);
}

static ssize_t done(struct aiocb *request)
{
    const struct aiocb *all[] = {request};
    while (aio_error(request) == EINPROGRESS)
        aio_suspend(all, 1, NULL);
    return aio_return(request);
}

static void posix_aio(void)
{
    int fd = open("aio", O_RDWR | O_CREAT, 0644);
    struct aiocb out = {.aio_fildes = fd, .aio_buf = want, .aio_nbytes = 700000};
    struct aiocb in = {.aio_fildes = fd, .aio_buf = got, .aio_nbytes = 700000}, sync = {.aio_fildes = fd};
    memset(got, 0, sizeof got);
    CHECK(fd >= 0 && aio_write(&out) == 0 && done(&out) == 700000);
    CHECK(aio_fsync(O_SYNC, &sync) == 0 && done(&sync) == 0);
    CHECK(aio_read(&in) == 0 && done(&in) == 700000 && memcmp(got, want, 700000) == 0);
    struct aiocb *both[] = {&in, &out};
    CHECK(lio_listio(LIO_WAIT, both, 2, NULL) == 0 && done(&out) == 700000 && close(fd) == 0 && unlink("aio") == 0);
}

static ucontext_t back, there;

static void in_context(void)
{
    works("context");
}

static void *contexts(void *unused)
{
    (void)unused;
    /* Guarded from below, so that an overflow is seen. */
    char *memory = mmap(NULL, 65536 + 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED && mprotect(memory, 65536, PROT_NONE) == 0);
    for (int turn = 0; turn < 3; turn++) {
        CHECK(getcontext(&there) == 0);
        there.uc_stack.ss_sp = memory + 65536;
        there.uc_stack.ss_size = 16384;
        there.uc_link = &back;
        makecontext(&there, in_context, 0);
        CHECK(swapcontext(&back, &there) == 0);
        works("between");
    }
    return NULL;
}

int main(void)
{
    pthread_t thread;
    for (size_t i = 0; i < sizeof want; i++)
        want[i] = (char)(i * 31 + i / 4096);
    threads(0);
    threads(65536);
    posix_aio();
    contexts(NULL);
    CHECK(pthread_create(&thread, NULL, contexts, NULL) == 0 && pthread_join(thread, NULL) == 0);
    works("main");
    return 0;
}
