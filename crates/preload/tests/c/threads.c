/* Threads, forks of a threaded program, signals, cancellation. Working directory in the pool. */
#include "check.h"

enum { THREADS = 4, LINES = 200 };
static int shared;

static void *writer(void *arg)
{
    char line[17];
    for (int i = 0; i < LINES; i++) {
        snprintf(line, sizeof line, "%2ld-%011d\n", (long)arg, i);
        CHECK(write(shared, line, 15) == 15);
        if (i % 20 == 0) {
            char name[32];
            snprintf(name, sizeof name, "t%ld-%d", (long)arg, i);
            put(name, "x");
            CHECK(unlink(name) == 0);
        }
    }
    return 0;
}

static void shared_offset(void)
{
    shared = open("lines", O_RDWR | O_CREAT | O_TRUNC, 0644);
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], 0, writer, (void *)i) == 0);
    pid_t pid = fork(); /* a process writes at the same shared offset */
    if (pid == 0) {
        writer((void *)9);
        _exit(0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], 0);
    CHECK(wait_ok(pid));
    struct stat st;
    CHECK(fstat(shared, &st) == 0 && st.st_size == 15L * LINES * (THREADS + 1));
    char *all = malloc(st.st_size);
    CHECK(pread(shared, all, st.st_size, 0) == st.st_size);
    for (long i = 0; i < st.st_size; i += 15)
        CHECK(all[i + 2] == '-' && all[i + 14] == '\n');
    free(all);
    close(shared);
}

static volatile int stop;
static void *busy(void *arg)
{
    char name[32];
    snprintf(name, sizeof name, "busy%ld", (long)arg);
    while (!stop) {
        put(name, "busy");
        expect(name, "busy");
    }
    return 0;
}

static void forks_of_threads(void)
{
    pthread_t threads[2];
    for (long i = 0; i < 2; i++)
        pthread_create(&threads[i], 0, busy, (void *)i);
    for (int i = 0; i < 50; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            alarm(20); /* a deadlock ends the child */
            put("forked", "child");
            expect("forked", "child");
            _exit(0);
        }
        CHECK(wait_ok(pid));
    }
    stop = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
}

static volatile int ticks;
static int logfd;
static void tick(int signal)
{
    (void)signal;
    ticks++;
    CHECK(write(logfd, ".", 1) == 1);
}

static void signals(void)
{
    logfd = open("ticks", O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0644);
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    struct itimerval timer = {{0, 2000}, {0, 2000}};
    setitimer(ITIMER_REAL, &timer, 0);
    while (ticks < 50) {
        put("sig", "signal");
        expect("sig", "signal");
    }
    timer.it_value.tv_usec = 0;
    setitimer(ITIMER_REAL, &timer, 0);
    struct stat st;
    CHECK(fstat(logfd, &st) == 0 && st.st_size == ticks);
}

static int cleaned;
static void cleanup(void *arg)
{
    (void)arg;
    cleaned = 1;
}

static void *blocked(void *arg)
{
    char c;
    pthread_cleanup_push(cleanup, 0);
    read(*(int *)arg, &c, 1);
    pthread_cleanup_pop(0);
    return 0;
}

static void cancelled(void)
{
    int ends[2];
    pthread_t thread;
    void *result;
    CHECK(pipe(ends) == 0 && pthread_create(&thread, 0, blocked, &ends[0]) == 0);
    usleep(20000);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED && cleaned);
}

int main(void)
{
    shared_offset(), forks_of_threads(), cancelled(), signals();
    return 0;
}
