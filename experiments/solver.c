/* A program that others run beside: conjugate gradients on a 27-point stencil, as HPCG does (without its preconditioner),
 * in several processes, with a block of each written every so many steps, as NAStJA does. The work of a step is always
 * the same, so what a step takes longer is what others took from it: of cores, of caches, of the way to memory.
 *
 *     solver PROCESSES STEPS SIDE EVERY DIR
 *
 * Each process has SIDE^3 rows; EVERY 0 writes nothing, and files in DIR are called block-PROCESS-STEP. It says "ready", waits for a
 * line, computes, and prints as JSON the monotonic clock at the beginning and after each step, in nanoseconds. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { NEIGHBOURS = 27, PROCESSES_MAX = 1024, STEPS_MAX = 1000000, SIDE_MAX = 512, HUGE_PAGE = 2 << 20,
       /* It has come nearer by then. */
       STEPS_JUDGED = 50 };

struct shared {
    pthread_barrier_t barrier;
    double part[PROCESSES_MAX];
    long long times[]; /* STEPS + 1 */
};

struct problem {
    int rows;
    double *values; /* NEIGHBOURS a row */
    int *columns;
    double *x, *r, *p, *q;
};

static struct shared *shared;
static int processes;
static pid_t first_process;

/* Ends the first process, and with it, since they asked for that, all others: nobody waits for one that is gone. */
static void give_up(void) {
    if (getpid() != first_process)
        kill(first_process, SIGTERM);
    exit(1);
}

static void fail(const char *what) {
    fprintf(stderr, "solver: %s: %s\n", what, strerror(errno));
    give_up();
}

/* In huge pages, as nodes for such programs give it: with small ones runs differ by which pages they got. */
static void *memory(size_t bytes) {
    void *found = aligned_alloc(HUGE_PAGE, (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    if (!found)
        fail("memory");
    madvise(found, bytes, MADV_HUGEPAGE);
    return found;
}

static long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void together(void) {
    int error = pthread_barrier_wait(&shared->barrier);
    if (error && error != PTHREAD_BARRIER_SERIAL_THREAD) {
        errno = error;
        fail("waiting for the others");
    }
}

/* The matrix of HPCG: 26 on the diagonal, -1 for each neighbour; what lies outside counts as the row itself with 0. */
static struct problem make(int side) {
    int rows = side * side * side;
    struct problem one = {rows, memory(sizeof(double) * NEIGHBOURS * rows), memory(sizeof(int) * NEIGHBOURS * rows),
                          memory(sizeof(double) * rows), memory(sizeof(double) * rows), memory(sizeof(double) * rows),
                          memory(sizeof(double) * rows)};
    for (int row = 0; row < rows; row++) {
        int x = row % side, y = row / side % side, z = row / side / side, at = NEIGHBOURS * row;
        for (int dz = -1; dz <= 1; dz++)
            for (int dy = -1; dy <= 1; dy++)
                for (int dx = -1; dx <= 1; dx++, at++) {
                    int nx = x + dx, ny = y + dy, nz = z + dz;
                    int inside = nx >= 0 && ny >= 0 && nz >= 0 && nx < side && ny < side && nz < side;
                    one.columns[at] = inside ? nx + side * (ny + side * nz) : row;
                    one.values[at] = !inside ? 0 : one.columns[at] == row ? 26 : -1;
                }
        one.x[row] = 0;
        one.r[row] = one.p[row] = 1 + row % 7;
    }
    return one;
}

/* The sum over all processes of `mine`. */
static double sum(int rank, double mine) {
    shared->part[rank] = mine;
    together();
    double all = 0;
    for (int other = 0; other < processes; other++)
        all += shared->part[other];
    together();
    return all;
}

static double dot(const struct problem *one, const double *a, const double *b) {
    double found = 0;
    for (int row = 0; row < one->rows; row++)
        found += a[row] * b[row];
    return found;
}

static void multiply(const struct problem *one) {
    for (int row = 0; row < one->rows; row++) {
        double found = 0;
        const double *values = one->values + NEIGHBOURS * row;
        const int *columns = one->columns + NEIGHBOURS * row;
        for (int at = 0; at < NEIGHBOURS; at++)
            found += values[at] * one->p[columns[at]];
        one->q[row] = found;
    }
}

/* Once it has converged the numbers are made anew: a step's work has to stay what it is. */
static double restart(struct problem *one) {
    for (int row = 0; row < one->rows; row++) {
        one->x[row] = 0;
        one->r[row] = one->p[row] = 1 + row % 7;
    }
    return dot(one, one->r, one->r);
}

static double iterate(struct problem *one, int rank, double square) {
    multiply(one);
    double alpha = square / sum(rank, dot(one, one->p, one->q));
    for (int row = 0; row < one->rows; row++) {
        one->x[row] += alpha * one->p[row];
        one->r[row] -= alpha * one->q[row];
    }
    double next = sum(rank, dot(one, one->r, one->r)), beta = next / square;
    for (int row = 0; row < one->rows; row++)
        one->p[row] = one->r[row] + beta * one->p[row];
    return next;
}

static void write_block(const char *dir, const struct problem *one, int rank, int step) {
    char path[4096];
    snprintf(path, sizeof path, "%s/block-%d-%d", dir, rank, step);
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
    if (file < 0)
        fail(path);
    const char *from = (const char *)one->x;
    for (size_t left = sizeof(double) * one->rows; left;) {
        ssize_t wrote = write(file, from, left);
        if (wrote < 0)
            fail(path);
        from += wrote;
        left -= wrote;
    }
    if (close(file))
        fail(path);
}

/* Each process keeps to a core of its own, as MPI binds them: left alone, the kernel may put two that wake each other on one. */
static void keep_to_core(int rank) {
    cpu_set_t allowed, mine;
    if (sched_getaffinity(0, sizeof allowed, &allowed))
        fail("cores");
    int wanted = rank % CPU_COUNT(&allowed), core = 0;
    while (!CPU_ISSET(core, &allowed) || wanted-- > 0)
        core++;
    CPU_ZERO(&mine);
    CPU_SET(core, &mine);
    if (sched_setaffinity(0, sizeof mine, &mine))
        fail("keeping to a core");
}

static void work(int rank, int steps, int side, int every, const char *dir) {
    keep_to_core(rank);
    struct problem one = make(side);
    double first = sum(rank, dot(&one, one.r, one.r)), square = first, least = first;
    if (rank == 0) {
        char line[16];
        puts("ready");
        fflush(stdout);
        if (!fgets(line, sizeof line, stdin))
            give_up();
        shared->times[0] = now();
    }
    together();
    for (int step = 1; step <= steps; step++) {
        square = iterate(&one, rank, square);
        least = square < least ? square : least;
        if (square < 1e-12 * first)
            square = sum(rank, restart(&one));
        if (every && step % every == 0)
            write_block(dir, &one, rank, step);
        together();
        if (rank == 0)
            shared->times[step] = now();
    }
    if (steps >= STEPS_JUDGED && !(least < first)) {
        fprintf(stderr, "solver: it does not converge: %g after %g\n", least, first);
        give_up();
    }
}

static int number(const char *text, int least, int most) {
    char *end;
    long found = strtol(text, &end, 10);
    if (*end || end == text || found < least || found > most) {
        fprintf(stderr, "solver: '%s' is no number from %d to %d\n", text, least, most);
        exit(2);
    }
    return (int)found;
}

int main(int count, char **words) {
    if (count != 6) {
        fprintf(stderr, "usage: solver PROCESSES STEPS SIDE EVERY DIR\n");
        return 2;
    }
    first_process = getpid();
    processes = number(words[1], 1, PROCESSES_MAX);
    int steps = number(words[2], 1, STEPS_MAX), side = number(words[3], 2, SIDE_MAX), every = number(words[4], 0, STEPS_MAX);
    size_t bytes = sizeof *shared + sizeof(long long) * (steps + 1);
    shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        fail("shared memory");
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &attributes, processes);
    for (int rank = 1; rank < processes; rank++) {
        pid_t child = fork();
        if (child < 0)
            fail("fork");
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            work(rank, steps, side, every, words[5]);
            exit(0);
        }
    }
    work(0, steps, side, every, words[5]);
    for (int rank = 1; rank < processes; rank++) {
        int status;
        if (wait(&status) < 0 || status)
            return 1;
    }
    printf("{\"times\": [");
    for (int step = 0; step <= steps; step++)
        printf("%s%lld", step ? ", " : "", shared->times[step]);
    puts("]}");
    return 0;
}
