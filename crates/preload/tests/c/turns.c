/* Waiting for locks: turns in the order of arrival, whoever leaves in between, and circles. usage: turns [DIR [DIR]]: two ways to one
 * directory; every second process takes the second one. Linux itself promises no order. */
#include "check.h"

enum { WAITERS = 8, KILLED = 2, INTERRUPTED = 5 };
static const char *ways[2] = {".", "."};

static int held_file(int who)
{
    char name[4096];
    snprintf(name, sizeof name, "%s/turn", ways[who % 2]);
    int fd = open(name, O_RDWR | O_CREAT, 0644);
    CHECK(fd >= 0);
    return fd;
}

/* Kind 0: flock, 1: of a process, 2: of an open file. */
static int lock_byte(int fd, int kind, int wait, int type, off_t byte)
{
    struct flock lock = {.l_type = type, .l_start = byte, .l_len = 1};
    if (kind == 0)
        return flock(fd, (type == F_UNLCK ? LOCK_UN : LOCK_EX) | (wait ? 0 : LOCK_NB));
    if (kind == 1)
        return fcntl(fd, wait ? F_SETLKW : F_SETLK, &lock);
    return fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &lock);
}

static void nothing(int signal)
{
    (void)signal;
}

static void waiter(int who, int kind, int out)
{
    struct sigaction action = {.sa_handler = nothing};
    sigaction(SIGUSR1, &action, 0);
    int fd = held_file(who), result = lock_byte(fd, kind, 1, F_WRLCK, 0);
    char me = who;
    if (who == INTERRUPTED)
        _exit(!(result == -1 && errno == EINTR));
    CHECK(result == 0 && write(out, &me, 1) == 1);
    usleep(3000);
    CHECK(lock_byte(fd, kind, 0, F_UNLCK, 0) == 0);
    _exit(0);
}

static void in_order(int kind)
{
    int order[2], fd = held_file(0);
    pid_t pids[WAITERS];
    CHECK(pipe(order) == 0 && lock_byte(fd, kind, 0, F_WRLCK, 0) == 0);
    for (int who = 0; who < WAITERS; who++) {
        pids[who] = fork();
        if (pids[who] == 0)
            waiter(who, kind, order[1]);
        usleep(150000);
    }
    int status;
    CHECK(kill(pids[KILLED], SIGKILL) == 0 && waitpid(pids[KILLED], &status, 0) == pids[KILLED] && WIFSIGNALED(status));
    CHECK(kill(pids[INTERRUPTED], SIGUSR1) == 0 && wait_ok(pids[INTERRUPTED]));
    CHECK(lock_byte(fd, kind, 0, F_UNLCK, 0) == 0);
    alarm(60);
    for (int who = 0; who < WAITERS; who++) {
        char next = -1;
        if (who == KILLED || who == INTERRUPTED)
            continue;
        CHECK(read(order[0], &next, 1) == 1 && next == who);
    }
    for (int who = 0; who < WAITERS; who++)
        CHECK(who == KILLED || who == INTERRUPTED || wait_ok(pids[who]));
    CHECK(lock_byte(fd, kind, 0, F_WRLCK, 0) == 0);
    alarm(0);
    close(fd);
    close(order[0]);
    close(order[1]);
}

/* Each has a byte and waits for the other's. */
static void circle(void)
{
    int ready[2], fd = held_file(0);
    char c;
    CHECK(pipe(ready) == 0 && lock_byte(fd, 1, 0, F_WRLCK, 0) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        int mine = held_file(1);
        CHECK(lock_byte(mine, 1, 0, F_WRLCK, 1) == 0 && write(ready[1], "r", 1) == 1);
        CHECK(lock_byte(mine, 1, 1, F_WRLCK, 0) == 0);
        _exit(0);
    }
    CHECK(read(ready[0], &c, 1) == 1);
    usleep(300000);
    alarm(60);
    FAILS(lock_byte(fd, 1, 1, F_WRLCK, 1), EDEADLK);
    CHECK(lock_byte(fd, 1, 0, F_UNLCK, 0) == 0 && wait_ok(pid));
    CHECK(lock_byte(fd, 1, 1, F_WRLCK, 1) == 0);
    alarm(0);
    close(fd);
}

/* A number that each raises by one under the lock. */
static void turns(int kind)
{
    enum { PROCESSES = 16, TURNS = 10 };
    int fd = held_file(0), number = 0;
    pid_t pids[PROCESSES];
    CHECK(pwrite(fd, &number, sizeof number, 0) == sizeof number);
    for (int who = 0; who < PROCESSES; who++) {
        pids[who] = fork();
        if (pids[who] == 0) {
            int mine = held_file(who);
            for (int turn = 0; turn < TURNS; turn++) {
                CHECK(lock_byte(mine, kind, 1, F_WRLCK, 0) == 0);
                CHECK(pread(mine, &number, sizeof number, 0) == sizeof number);
                number++;
                CHECK(pwrite(mine, &number, sizeof number, 0) == sizeof number);
                CHECK(lock_byte(mine, kind, 0, F_UNLCK, 0) == 0);
            }
            _exit(0);
        }
    }
    for (int who = 0; who < PROCESSES; who++)
        CHECK(wait_ok(pids[who]));
    CHECK(lock_byte(fd, kind, 1, F_RDLCK, 0) == 0);
    CHECK(pread(fd, &number, sizeof number, 0) == sizeof number && number == PROCESSES * TURNS);
    close(fd);
}

int main(int count, char **arguments)
{
    for (int way = 0; way < 2 && count > 1; way++)
        ways[way] = arguments[count > 2 ? 1 + way : 1];
    for (int kind = 0; kind < 3; kind++) {
        in_order(kind);
        turns(kind);
    }
    circle();
    return 0;
}
