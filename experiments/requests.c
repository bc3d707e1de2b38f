/* Client processes of a stager, through the published NORNS interface: what `run j3` measures.
 *
 *     requests register NSID MOUNT                     a namespace in a directory that exists
 *     requests ping|submit|copy CLIENTS REQUESTS       REQUESTS of each of CLIENTS processes
 *
 * `submit` copies a://file to b://RANK/NUMBER and does not wait, `copy` waits for each. One line of JSON; `lost` are copies
 * that the daemon said to know nothing of when it was asked how they were. It uses what
 * both this project's libraries and those of NORNS have, so one source measures both, each with its own library. */
#include <norns.h>
#include <nornsctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WARM_UP = 8, PATH_BYTES = 64 };

static uint64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static void check(norns_error_t error, const char *what) {
    if (error != NORNS_SUCCESS) {
        const char *why = norns_strerror(error);
        fprintf(stderr, "requests: %s: %s\n", what, why ? why : "unknown error");
        _exit(1);
    }
}

static norns_iotask_t submit(long rank, long number) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%ld/%ld", rank, number);
    norns_iotask_t task = NORNS_IOTASK(NORNS_IOTASK_COPY, NORNS_LOCAL_PATH("a://", "file"),
                                       NORNS_LOCAL_PATH("b://", path));
    check(norns_submit(&task), "norns_submit");
    return task;
}

/* False when the daemon does not know any more how it ended. */
static bool copy(long rank, long number) {
    norns_iotask_t task = submit(rank, number);
    norns_error_t error = norns_wait(&task, NULL);
    if (error == NORNS_ENOSUCHTASK)
        return false;
    check(error, "norns_wait");
    norns_stat_t stats;
    check(norns_error(&task, &stats), "norns_error");
    if (stats.st_status != NORNS_EFINISHED) {
        fprintf(stderr, "requests: a copy ended with %d\n", stats.st_task_error);
        _exit(1);
    }
    return true;
}

static bool request(const char *work, long rank, long number) {
    if (strcmp(work, "copy") == 0)
        return copy(rank, number);
    if (strcmp(work, "submit") == 0)
        submit(rank, number);
    else
        check(nornsctl_send_command(NORNSCTL_CMD_PING, NULL), "ping");
    return true;
}

/* One process: begins when `gate` is closed by the parent. */
static void client(const char *work, long rank, long count, int gate, int ready, uint64_t *times, long *lost) {
    char byte = 0;
    for (long n = 0; n < WARM_UP; n++)
        request("ping", rank, n);
    if (write(ready, &byte, 1) != 1 || read(gate, &byte, 1) != 0)
        _exit(1);
    for (long n = 0; n < count; n++) {
        uint64_t before = now();
        *lost += !request(work, rank, n);
        times[n] = now() - before;
    }
    _exit(0);
}

static int by_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int measure(const char *work, long clients, long count) {
    int gate[2], ready[2], failed = 0, status;
    size_t total = (size_t)clients * (size_t)count;
    /* The times of all requests, then how many copies of each process were lost. */
    size_t bytes = total * sizeof(uint64_t) + (size_t)clients * sizeof(long);
    uint64_t *times = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (times == MAP_FAILED || pipe(gate) || pipe(ready))
        return 1;
    long *lost = (long *)(times + total), all_lost = 0;
    /* No request before this: a connection is not for two processes. */
    for (long rank = 0; rank < clients; rank++) {
        pid_t child = fork();
        if (child < 0)
            return 1;
        if (child == 0) {
            close(gate[1]);
            close(ready[0]);
            client(work, rank, count, gate[0], ready[1], times + rank * count, lost + rank);
        }
    }
    close(ready[1]);
    char byte;
    for (long rank = 0; rank < clients; rank++)
        if (read(ready[0], &byte, 1) != 1)
            return 1;
    uint64_t began = now();
    close(gate[1]);
    for (long rank = 0; rank < clients; rank++)
        if (wait(&status) < 0 || status != 0)
            failed = 1;
    uint64_t ended = now();
    for (long rank = 0; rank < clients; rank++)
        all_lost += lost[rank];
    qsort(times, total, sizeof *times, by_size);
    printf("{\"per_second\": %.1f, \"p50_us\": %.2f, \"p99_us\": %.2f, \"lost\": %ld}\n",
           (double)total * 1e9 / (double)(ended - began), (double)times[total / 2] / 1e3,
           (double)times[total * 99 / 100] / 1e3, all_lost);
    return failed;
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "register") == 0) {
        nornsctl_backend_t backend = NORNSCTL_BACKEND(NORNS_BACKEND_POSIX_FILESYSTEM, false, argv[3], 1024);
        check(nornsctl_register_namespace(argv[2], &backend), "nornsctl_register_namespace");
        return 0;
    }
    long clients = argc == 4 ? atol(argv[2]) : 0, count = argc == 4 ? atol(argv[3]) : 0;
    if (clients < 1 || count < 1) {
        fprintf(stderr, "usage: requests register NSID MOUNT | ping|submit|copy CLIENTS REQUESTS\n");
        return 2;
    }
    return measure(argv[1], clients, count);
}
