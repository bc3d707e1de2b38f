/* Writes straight to a daemon's files: buffers that change meanwhile, writers that are killed or stopped. */
#include "check.h"
#include <time.h>

enum { LEN = 1 << 20, BLOCK = 4096 };
static unsigned char *memory;
static volatile int stop;

static void *scribble(void *arg)
{
    (void)arg;
    for (unsigned i = 0; !stop; i++)
        memory[(i * 7919u) % LEN]++;
    return 0;
}

/* Whatever was stored, it can be read: a checksum is of what was stored, not of what was there before. */
static void changing_memory(void)
{
    memory = calloc(1, LEN);
    unsigned char *got = malloc(LEN);
    int fd = open("changing", O_RDWR | O_CREAT, 0644);
    CHECK(fd >= 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, scribble, 0) == 0);
    for (int round = 0; round < 150; round++) {
        off_t at = (round % 5) * LEN + (round % 3) * 100;
        CHECK(pwrite(fd, memory, LEN, at) == LEN);
        CHECK(pread(fd, got, LEN, at) == LEN);
    }
    stop = 1;
    pthread_join(thread, 0);
    /* A program of its own reads all of it, by way of the daemons. */
    CHECK(system("cat changing > /dev/null") == 0);
    close(fd);
}

/* Borrowed files take no number that the program would get. */
static void numbers_stay(void)
{
    unsigned char data[BLOCK] = {1};
    int fd = open("numbers", O_RDWR | O_CREAT, 0644);
    CHECK(fd >= 0);
    for (int round = 0; round < 64; round++) {
        CHECK(pwrite(fd, data, BLOCK, (off_t)round * BLOCK) == BLOCK);
        CHECK(pread(fd, data, BLOCK, (off_t)round * BLOCK) == BLOCK);
        int next = open("/dev/null", O_RDONLY);
        CHECK(next == fd + 1);
        close(next);
    }
    close(fd);
}

static pid_t endless_writer(const char *name)
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid > 0)
        return pid;
    unsigned char *data = malloc(16 * BLOCK);
    int fd = open(name, O_RDWR | O_CREAT, 0644);
    for (unsigned round = 0;; round++) {
        memset(data, 1 + round % 250, 16 * BLOCK);
        CHECK(pwrite(fd, data, 16 * BLOCK, (round % 8) * 16 * BLOCK) == 16 * BLOCK);
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* Blocks are whole, and others can write. */
static void usable(const char *name)
{
    unsigned char block[BLOCK];
    int fd = open(name, O_RDWR);
    CHECK(fd >= 0);
    for (int i = 0; pread(fd, block, BLOCK, (off_t)i * BLOCK) == BLOCK; i++)
        for (int k = 1; k < BLOCK; k++)
            CHECK(block[k] == block[0]);
    memset(block, 'o', BLOCK);
    CHECK(pwrite(fd, block, BLOCK, 3 * BLOCK) == BLOCK);
    memset(block, 0, BLOCK);
    CHECK(pread(fd, block, BLOCK, 3 * BLOCK) == BLOCK && block[0] == 'o' && block[BLOCK - 1] == 'o');
    close(fd);
}

static void killed_and_stopped(void)
{
    /* There is a file even when a writer is stopped before its first step, on a busy machine. */
    close(open("killed", O_RDWR | O_CREAT, 0644));
    close(open("stopped", O_RDWR | O_CREAT, 0644));
    for (int round = 0; round < 40; round++) {
        pid_t pid = endless_writer("killed");
        usleep(20000 + round * 997);
        CHECK(kill(pid, SIGKILL) == 0);
        int status;
        CHECK(waitpid(pid, &status, 0) == pid);
        usable("killed");
    }
    for (int round = 0; round < 6; round++) {
        pid_t pid = endless_writer("stopped");
        usleep(30000 + round * 3301);
        CHECK(kill(pid, SIGSTOP) == 0);
        double start = now();
        usable("stopped");
        /* Twice the longest wait for a writer, and what a busy machine takes. */
        CHECK(now() - start < 60);
        CHECK(kill(pid, SIGCONT) == 0);
        usleep(5000);
        CHECK(kill(pid, 0) == 0); /* it goes on */
        CHECK(kill(pid, SIGKILL) == 0);
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
        usable("stopped");
    }
}

int main(void)
{
    numbers_stay();
    changing_memory();
    killed_and_stopped();
    return 0;
}
