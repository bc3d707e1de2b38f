/* libaio on files of the pool, of others, and on both in one queue. Working directory in the pool. */
#include "check.h"
#include <libaio.h>
#include <poll.h>
#include <sys/eventfd.h>

static int elsewhere(void)
{
    char name[] = "/tmp/libaioXXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0 && unlink(name) == 0);
    return fd;
}

static io_context_t context_for(int events)
{
    io_context_t context = 0;
    CHECK(io_setup(events, &context) == 0);
    return context;
}

/* Submits one request and gives what its event says. */
static long done(io_context_t context, struct iocb *one)
{
    struct io_event event = {0};
    one->data = one;
    CHECK(io_submit(context, 1, &one) == 1);
    CHECK(io_getevents(context, 1, 1, &event, NULL) == 1 && event.obj == one && event.data == one && event.res2 == 0);
    return event.res;
}

static void each_kind(int fd)
{
    io_context_t context = context_for(8);
    char out[5000], in[5000];
    struct iocb one;
    memset(out, 'a', sizeof out);
    io_prep_pwrite(&one, fd, out, sizeof out, 100);
    CHECK(done(context, &one) == sizeof out);
    io_prep_fsync(&one, fd);
    CHECK(done(context, &one) == 0);
    io_prep_fdsync(&one, fd);
    CHECK(done(context, &one) == 0);
    memset(in, 0, sizeof in);
    io_prep_pread(&one, fd, in, sizeof in, 100);
    CHECK(done(context, &one) == sizeof in && memcmp(in, out, sizeof in) == 0);
    io_prep_pread(&one, fd, in, sizeof in, 5000);
    CHECK(done(context, &one) == 100);
    io_prep_pread(&one, fd, in, sizeof in, 1 << 20);
    CHECK(done(context, &one) == 0);
    struct iovec parts[] = {{"wx", 2}, {"yz", 2}}, back[] = {{in, 1}, {in + 10, 3}};
    io_prep_pwritev(&one, fd, parts, 2, 0);
    CHECK(done(context, &one) == 4);
    io_prep_preadv(&one, fd, back, 2, 0);
    CHECK(done(context, &one) == 4 && in[0] == 'w' && memcmp(in + 10, "xyz", 3) == 0);
    CHECK(io_destroy(context) == 0);
}

static void errors(void)
{
    io_context_t context = context_for(8);
    int reads = open("errors", O_RDONLY | O_CREAT, 0644), writes = open("errors", O_RDWR);
    char byte = 'x';
    struct iocb one, *list[] = {&one};
    io_prep_pwrite(&one, reads, &byte, 1, 0);
    CHECK(io_submit(context, 1, list) == -EBADF);
    io_prep_pwrite(&one, writes, &byte, 1, -1);
    CHECK(io_submit(context, 1, list) == -EINVAL);
    io_prep_pwrite(&one, writes, &byte, 1, 0);
    io_set_eventfd(&one, writes);
    CHECK(io_submit(context, 1, list) == -EINVAL);
    io_prep_pwrite(&one, writes, &byte, 1, 0);
    one.aio_rw_flags = 0x40000000;
    CHECK(io_submit(context, 1, list) == -EOPNOTSUPP);
    io_prep_fsync(&one, writes);
    one.u.c.nbytes = 1;
    CHECK(io_submit(context, 1, list) == -EINVAL);
    int directory = open(".", O_RDONLY);
    io_prep_pread(&one, directory, &byte, 1, 0);
    CHECK(io_submit(context, 1, list) == -EINVAL);
    /* The context does not exist: nothing is done. */
    io_context_t gone = context_for(1);
    CHECK(io_destroy(gone) == 0);
    io_prep_pwrite(&one, writes, &byte, 1, 0);
    CHECK(io_submit(gone, 1, list) == -EINVAL);
    struct stat st;
    CHECK(fstat(writes, &st) == 0 && st.st_size == 0);
    /* Begun, and failed: told by the event, with the error itself, once. */
    io_prep_pwrite(&one, writes, NULL, 1, 0);
    CHECK(done(context, &one) == -EFAULT);
    io_prep_pwrite(&one, writes, &byte, 1, 0);
    CHECK(done(context, &one) == 1);
    /* The first request that is refused ends the batch. */
    struct iocb good, bad, *both[] = {&good, &bad, &good};
    io_prep_pread(&good, writes, &byte, 1, 0);
    io_prep_pwrite(&bad, reads, &byte, 1, 0);
    struct io_event events[4];
    CHECK(io_submit(context, 3, both) == 1 && io_getevents(context, 1, 4, events, NULL) == 1 && events[0].obj == &good);
    struct timespec at_once = {0};
    CHECK(io_getevents(context, 1, 4, events, &at_once) == 0);
    CHECK(io_getevents(context, 4, 1, events, &at_once) == -EINVAL);
    CHECK(io_destroy(context) == 0);
}

/* Requests on both kinds of files in one batch, all counted by one event descriptor. */
static void mixed(void)
{
    enum { COUNT = 64 };
    io_context_t context = context_for(COUNT);
    int fds[] = {open("mixed", O_RDWR | O_CREAT, 0644), elsewhere()}, bell = eventfd(0, EFD_NONBLOCK);
    static char blocks[COUNT][4096], back[4096];
    struct iocb all[COUNT], *list[COUNT];
    for (int i = 0; i < COUNT; i++) {
        memset(blocks[i], 'A' + i, sizeof blocks[i]);
        io_prep_pwrite(&all[i], fds[i * i % 7 % 2], blocks[i], 4096 - i, i * 4096);
        io_set_eventfd(&all[i], bell);
        all[i].data = &blocks[i], list[i] = &all[i];
    }
    for (int at = 0, n; at < COUNT; at += n)
        CHECK((n = io_submit(context, COUNT - at, list + at)) > 0);
    int got = 0, seen[COUNT] = {0};
    while (got < COUNT) {
        struct io_event events[COUNT];
        struct timespec second = {1, 0};
        int n = io_pgetevents(context, 1, COUNT, events, &second, NULL);
        CHECK(n > 0);
        for (int i = 0; i < n; i++) {
            int which = events[i].obj - all;
            CHECK(events[i].data == &blocks[which] && events[i].res == 4096 - which && !seen[which]++);
        }
        got += n;
    }
    eventfd_t count;
    CHECK(eventfd_read(bell, &count) == 0 && count == COUNT);
    for (int i = 0; i < COUNT; i++)
        CHECK(pread(fds[i * i % 7 % 2], back, 4096 - i, i * 4096) == 4096 - i && memcmp(back, blocks[i], 4096 - i) == 0);
    CHECK(io_destroy(context) == 0);
}

/* A thread that waits for a request of another one; the request belongs to whoever has its event. */
struct waiting { io_context_t context; int left; };

static void *collector(void *argument)
{
    struct waiting *waiting = argument;
    while (waiting->left > 0) {
        struct io_event event;
        CHECK(io_getevents(waiting->context, 1, 1, &event, NULL) == 1 && event.res == 3);
        CHECK(event.obj->aio_lio_opcode == IO_CMD_PREAD && event.obj->u.c.nbytes == 3 && event.obj->data == event.data);
        memset(event.obj, 0xff, sizeof *event.obj);
        free(event.obj);
        waiting->left--;
    }
    return 0;
}

static void threads(void)
{
    struct waiting waiting = {context_for(64), 20000};
    int fd = open("threads", O_RDWR | O_CREAT, 0644);
    char back[3];
    CHECK(write(fd, "abc", 3) == 3);
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, collector, &waiting) == 0);
    for (int i = 0; i < 20000; i++) {
        struct iocb *one = malloc(sizeof *one);
        io_prep_pread(one, fd, back, 3, 0);
        one->data = one;
        int n;
        while ((n = io_submit(waiting.context, 1, &one)) == -EAGAIN)
            sched_yield();
        CHECK(n == 1);
    }
    CHECK(pthread_join(thread, 0) == 0 && io_destroy(waiting.context) == 0);
}

/* A full queue: what is done is told, once, and what is refused was not begun. */
static void full(void)
{
    io_context_t context = context_for(1);
    int fd = open("full", O_WRONLY | O_CREAT | O_APPEND, 0644), bell = eventfd(0, EFD_NONBLOCK), accepted = 0;
    struct iocb one, *list[] = {&one};
    for (;; accepted++) {
        io_prep_pwrite(&one, fd, "z", 1, 0);
        io_set_eventfd(&one, bell);
        int n = io_submit(context, 1, list);
        if (n == -EAGAIN)
            break;
        CHECK(n == 1 && accepted < 100000);
    }
    CHECK(io_submit(context, 1, list) == -EAGAIN);
    struct stat st;
    eventfd_t count;
    CHECK(fstat(fd, &st) == 0 && st.st_size == accepted && eventfd_read(bell, &count) == 0 && (int)count == accepted);
    struct io_event *events = calloc(accepted + 1, sizeof *events);
    struct timespec at_once = {0};
    int got = 0, n;
    while ((n = io_getevents(context, 0, accepted + 1 - got, events + got, &at_once)) > 0)
        got += n;
    CHECK(n == 0 && got == accepted);
    for (int i = 0; i < got; i++)
        CHECK(events[i].res == 1 && events[i].obj == &one);
    CHECK(done(context, &one) == 1 && io_destroy(context) == 0);
}

/* As QEMU and fio read it. */
struct ring { unsigned id, nr, head, tail, magic, compat, incompat, length; struct io_event events[]; };

static void by_the_ring(void)
{
    io_context_t context = context_for(8);
    volatile struct ring *ring = (void *)context;
    int fd = open("ring", O_RDWR | O_CREAT, 0644);
    struct iocb good, bad, *list[] = {&good, &bad};
    io_prep_pwrite(&good, fd, "ring", 4, 0), io_prep_pwrite(&bad, fd, NULL, 4, 0);
    CHECK(ring->magic == 0xa10a10a1 && io_submit(context, 2, list) == 2);
    CHECK((ring->tail + ring->nr - ring->head) % ring->nr == 2);
    const struct io_event *events = (void *)ring->events;
    CHECK(events[ring->head].res == 4 && events[ring->head].obj == &good && (long)events[ring->head + 1].res < 0);
    ring->head = (ring->head + 2) % ring->nr;
    /* Nothing of that is left to be told of the next request at its address. */
    io_prep_pwrite(&bad, elsewhere(), "else", 4, 0);
    CHECK(done(context, &bad) == 4 && io_destroy(context) == 0);
}

static int called;

static void callback(io_context_t context, struct iocb *one, long result, long more)
{
    CHECK(context && result == 2 && more == 0 && one->aio_lio_opcode == IO_CMD_PWRITE);
    called++;
}

static void callbacks(void)
{
    io_context_t context = 0;
    CHECK(io_queue_init(4, &context) == 0);
    int fd = open("callbacks", O_RDWR | O_CREAT, 0644);
    struct iocb one, two, *list[] = {&one, &two};
    io_prep_pwrite(&one, fd, "ab", 2, 0), io_prep_pwrite(&two, fd, "cd", 2, 2);
    io_set_callback(&one, callback), io_set_callback(&two, callback);
    CHECK(io_submit(context, 2, list) == 2 && io_queue_run(context) == 0 && called == 2);
    CHECK(io_queue_release(context) == 0);
}

static void in_a_child(int fd)
{
    pid_t pid = fork();
    if (pid == 0) {
        each_kind(fd);
        _exit(0);
    }
    CHECK(wait_ok(pid));
    each_kind(fd);
}

int main(void)
{
    int fd = open("pool", O_RDWR | O_CREAT, 0644);
    each_kind(elsewhere()), each_kind(fd);
    errors(), mixed(), threads(), full(), by_the_ring(), callbacks(), in_a_child(open("child", O_RDWR | O_CREAT, 0644));
    return 0;
}
