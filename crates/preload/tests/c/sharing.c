/* Where open files leave the memory of the process that opened them: children of all kinds, other programs,
 * messages. Offsets and flags are shared then as for every file. Runs with its working directory in the
 * pool; `sharing step FD OFFSET` is a program that inherited something. */
#include "check.h"
#include <dlfcn.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/resource.h>

enum { WORDS = 12000 };

/* A file of words that say where they are. */
static void fill(const char *path, int words)
{
    int *all = malloc(words * sizeof *all);
    for (int i = 0; i < words; i++)
        all[i] = i;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0 && write(fd, all, words * sizeof *all) == (ssize_t)(words * sizeof *all));
    CHECK(close(fd) == 0);
    free(all);
}

static int offset(int fd) { return lseek(fd, 0, SEEK_CUR); }

static void step(int fd, int at)
{
    int word;
    CHECK(offset(fd) == at && read(fd, &word, 4) == 4 && word == at / 4 && offset(fd) == at + 4);
}

/* A system call that nobody sees. */
static long unseen(long n, long a, long b, long c)
{
    long result;
    register long r10 __asm__("r10") = 0, r8 __asm__("r8") = 0;
    __asm__ volatile("syscall" : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return result;
}

static char *numbers[2];
static char **step_arguments(int fd, int at)
{
    static char *argv[5] = {"sharing", "step"};
    free(numbers[0]), free(numbers[1]);
    CHECK(asprintf(&numbers[0], "%d", fd) > 0 && asprintf(&numbers[1], "%d", at) > 0);
    argv[2] = numbers[0], argv[3] = numbers[1];
    return argv;
}

static void with_forked_children(void)
{
    int fd = open("w", O_RDWR), twin = dup(fd), cloexec = open("w", O_RDONLY | O_CLOEXEC);
    step(fd, 0);
    CHECK(fcntl(fd, F_SETFL, O_APPEND) == 0 && fcntl(cloexec, F_GETFD) == FD_CLOEXEC && fcntl(fd, F_GETFD) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        step(twin, 4), step(cloexec, 0);
        CHECK((fcntl(twin, F_GETFL) & (O_ACCMODE | O_APPEND)) == (O_RDWR | O_APPEND));
        CHECK(fcntl(fd, F_SETFL, 0) == 0);
        _exit(0);
    }
    CHECK(wait_ok(pid));
    step(fd, 8), step(cloexec, 4);
    CHECK((fcntl(fd, F_GETFL) & O_APPEND) == 0);
    CHECK(fcntl(cloexec, F_GETFD) == FD_CLOEXEC && fcntl(fd, F_GETFD) == 0 && fcntl(twin, F_GETFD) == 0);
    close(fd), close(twin), close(cloexec);
}

static void with_programs(void)
{
    int fd = open("w", O_RDONLY), cloexec = open("w", O_RDONLY | O_CLOEXEC);
    step(fd, 0), step(cloexec, 0);
    pid_t pid = fork();
    if (pid == 0) {
        execv("/proc/self/exe", step_arguments(fd, 4));
        _exit(1);
    }
    CHECK(wait_ok(pid));
    step(fd, 8);
    pid = fork();
    if (pid == 0) {
        /* Opened by the child, lazy until its own exec. */
        int own = open("w", O_RDONLY | O_CLOEXEC);
        step(own, 0);
        CHECK(dup2(own, 200) == 200);
        execv("/proc/self/exe", step_arguments(200, 4));
        _exit(1);
    }
    CHECK(wait_ok(pid));
    pid = fork();
    if (pid == 0) {
        execv("/proc/self/exe", step_arguments(cloexec, -1));
        _exit(1);
    }
    CHECK(wait_ok(pid) && close(fd) == 0 && close(cloexec) == 0);
}

typedef int spawn_function(pid_t *, const char *, const posix_spawn_file_actions_t *,
                           const posix_spawnattr_t *, char *const *, char *const *);

static void spawned(spawn_function *spawn, int shared)
{
    int fd = open("w", O_RDONLY), cloexec = open("w", O_RDONLY | O_CLOEXEC);
    pid_t pid;
    step(fd, 0), step(cloexec, 0);
    CHECK(spawn(&pid, "/proc/self/exe", 0, 0, step_arguments(fd, 4), environ) == 0 && wait_ok(pid));
    step(fd, shared ? 8 : 4);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, cloexec, 201);
    CHECK(spawn(&pid, "/proc/self/exe", &actions, 0, step_arguments(201, 4), environ) == 0 && wait_ok(pid));
    step(cloexec, shared ? 8 : 4);
    close(fd), close(cloexec);
}

static void with_spawned_programs(void)
{
    spawned(posix_spawn, 1);
    /* libc's own, past us: the child's offset starts where ours is. */
    void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    CHECK(libc != 0);
    spawned((spawn_function *)dlsym(libc, "posix_spawn"), 0);
    int fd = open("w", O_RDONLY);
    char command[100];
    step(fd, 0);
    snprintf(command, sizeof command, "/proc/%d/exe step %d 4", getpid(), fd);
    CHECK(system(command) == 0);
    step(fd, 8);
    int other = open("w", O_RDONLY);
    snprintf(command, sizeof command, "/proc/%d/exe step %d 0", getpid(), other);
    FILE *f = popen(command, "r");
    CHECK(f != 0 && pclose(f) == 0);
    step(other, 4);
    close(fd), close(other);
}

static void with_receivers(void)
{
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    char data = 'x', control[CMSG_SPACE(2 * sizeof(int))];
    struct iovec iov = {&data, 1};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    pid_t pid = fork();
    if (pid == 0) {
        CHECK(recvmsg(pair[1], &message, 0) == 1);
        int *fds = (int *)CMSG_DATA(CMSG_FIRSTHDR(&message));
        step(fds[0], 4), step(fds[1], 0);
        _exit(0);
    }
    int fds[2] = {open("w", O_RDONLY), open("w", O_RDONLY | O_CLOEXEC)}, twin = dup(fds[0]);
    step(twin, 0);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(header), fds, sizeof fds);
    CHECK(sendmsg(pair[0], &message, 0) == 1 && wait_ok(pid));
    step(twin, 8), step(fds[1], 4);
    /* Back to ourselves: the same description. */
    CHECK(sendmsg(pair[0], &message, 0) == 1);
    memset(control, 0, sizeof control);
    CHECK(recvmsg(pair[1], &message, 0) == 1);
    int *got = (int *)CMSG_DATA(CMSG_FIRSTHDR(&message));
    step(got[0], 12), step(fds[0], 16);
    errno = 0; /* an error of libc's own comes through as it is */
    CHECK(recvmsg(pair[1], &message, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    close(got[0]), close(got[1]), close(fds[0]), close(fds[1]), close(twin), close(pair[0]), close(pair[1]);
}

/* A child with a copy of the memory, made in a way we do not see. */
static void with_unseen_children(void)
{
    int fd = open("w", O_RDONLY);
    step(fd, 0);
    pid_t pid = unseen(SYS_clone, SIGCHLD, 0, 0);
    if (pid == 0) {
        step(fd, 4);
        pid_t next = fork();
        if (next == 0) {
            step(fd, 8);
            _exit(0);
        }
        CHECK(wait_ok(next));
        step(fd, 12);
        put("unseen", "child");
        _exit(0);
    }
    CHECK(wait_ok(pid));
    step(fd, 4);
    expect("unseen", "child");
    close(fd);
}

/* What gets past us fails; poll and epoll see a regular file. */
static void raw_calls(void)
{
    int fd = open("w", O_RDWR), word, events = epoll_create1(0);
    CHECK(unseen(SYS_read, fd, (long)&word, 4) == -EBADF && unseen(SYS_write, fd, (long)&word, 4) == -EPERM);
    struct pollfd poll_one = {fd, POLLIN | POLLOUT, 0};
    CHECK(poll(&poll_one, 1, 0) == 1 && poll_one.revents == (POLLIN | POLLOUT));
    struct epoll_event event = {.events = EPOLLIN};
    FAILS(epoll_ctl(events, EPOLL_CTL_ADD, fd, &event), EPERM);
    CHECK(fcntl(fd, F_SETOWN, getpid()) == 0 && fcntl(fd, F_GETOWN) == getpid());
    step(fd, 0);
    close(fd), close(events);
}

static void by_proc(void)
{
    char name[64], text[256], path[256];
    int fd = open("w", O_RDONLY);
    struct stat a, b;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(name, text, sizeof text - 1);
    CHECK(n > 0 && getcwd(path, sizeof path) != 0);
    text[n] = 0;
    CHECK(strcmp(text, strcat(path, "/w")) == 0);
    step(fd, 0);
    int other = open(name, O_RDONLY);
    step(other, 0), step(fd, 4);
    CHECK(stat(name, &a) == 0 && fstat(fd, &b) == 0 && a.st_ino == b.st_ino && a.st_size == 4 * WORDS);
    close(fd), close(other);
}

static void ranges(void)
{
    int fds[20], word;
    for (int i = 0; i < 20; i++) {
        fds[i] = open("w", O_RDONLY);
        CHECK(fds[i] == fds[0] + i);
    }
    CHECK(close_range(fds[5], fds[9], 0) == 0);
    for (int i = 0; i < 20; i++)
        if (i >= 5 && i < 10)
            FAILS(read(fds[i], &word, 4), EBADF);
        else
            step(fds[i], 0);
    CHECK(close_range(fds[10], fds[10], CLOSE_RANGE_CLOEXEC) == 0 && fcntl(fds[10], F_GETFD) == FD_CLOEXEC);
    CHECK(open("w", O_RDONLY) == fds[5] && dup(fds[5]) == fds[6] && dup2(fds[10], fds[7]) == fds[7]);
    step(fds[6], 0), step(fds[5], 4), step(fds[7], 4), step(fds[10], 8);
    pid_t pid = fork();
    if (pid == 0) {
        step(fds[5], 8), step(fds[7], 12);
        _exit(0);
    }
    CHECK(wait_ok(pid) && close_range(fds[0], ~0u, 0) == 0);
    CHECK((fds[0] = open("w", O_RDONLY)) >= 0);
    step(fds[0], 0);
    close(fds[0]);
}

static int shared_fd;
static unsigned char *seen; /* shared with children */

static void *reader(void *arg)
{
    int word, n;
    (void)arg;
    while ((n = read(shared_fd, &word, 4)) == 4)
        __atomic_fetch_add(&seen[word], 1, __ATOMIC_RELAXED);
    CHECK(n == 0);
    return 0;
}

/* Threads read one descriptor, without and with forks in between: each word is read once. */
static void readers(int forks)
{
    pthread_t threads[4];
    memset(seen, 0, WORDS);
    shared_fd = open("w", O_RDONLY);
    for (long i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], 0, reader, 0) == 0);
    for (int i = 0; i < forks; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            alarm(50); /* a deadlock ends the child */
            int word;
            for (int j = 0; j < 20 && read(shared_fd, &word, 4) == 4; j++)
                __atomic_fetch_add(&seen[word], 1, __ATOMIC_RELAXED);
            int own = open("w", O_RDONLY);
            step(own, 0);
            _exit(0);
        }
        CHECK(wait_ok(pid));
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], 0);
    for (int i = 0; i < WORDS; i++)
        CHECK(seen[i] == 1);
    close(shared_fd);
}

static void *writer(void *arg)
{
    for (int i = 0; i < 500; i++)
        CHECK(write(shared_fd, &arg, 8) == 8);
    return 0;
}

static void writers(void)
{
    pthread_t threads[4];
    shared_fd = open("written", O_RDWR | O_CREAT | O_TRUNC, 0644);
    for (long i = 1; i <= 4; i++)
        CHECK(pthread_create(&threads[i - 1], 0, writer, (void *)i) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], 0);
    long count[5] = {0}, word;
    CHECK(offset(shared_fd) == 4 * 500 * 8 && lseek(shared_fd, 0, SEEK_SET) == 0);
    while (read(shared_fd, &word, 8) == 8)
        CHECK(word >= 1 && word <= 4 && ++count[word]);
    for (int i = 1; i <= 4; i++)
        CHECK(count[i] == 500);
    close(shared_fd);
}

static void many(int files)
{
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    if ((int)limit.rlim_max < files + 200)
        files = limit.rlim_max - 200;
    struct rlimit raised = {files + 200, limit.rlim_max};
    CHECK(setrlimit(RLIMIT_NOFILE, &raised) == 0);
    int *fds = malloc(files * sizeof *fds);
    for (int i = 0; i < files; i++) {
        CHECK((fds[i] = open("w", O_RDONLY)) >= 0);
        CHECK(lseek(fds[i], 4 * i, SEEK_SET) == 4 * i);
    }
    pid_t pid = fork();
    if (pid == 0) {
        for (int i = 0; i < files; i++)
            CHECK(offset(fds[i]) == 4 * i && lseek(fds[i], 4, SEEK_CUR) == 4 * i + 4);
        for (int i = 0; i < files; i += 100)
            step(fds[i], 4 * i + 4);
        _exit(0);
    }
    CHECK(wait_ok(pid));
    for (int i = 0; i < files; i++)
        CHECK(offset(fds[i]) == 4 * i + (i % 100 ? 4 : 8) && close(fds[i]) == 0);
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    free(fds);
}

/* A process that has opened all it may can still fork, and shares what it has. */
static void at_the_limit(void)
{
    struct rlimit limit, low;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    low = limit;
    low.rlim_cur = limit.rlim_cur < 1100 ? limit.rlim_cur : 1100;
    CHECK(setrlimit(RLIMIT_NOFILE, &low) == 0);
    int fds[1100], count = 0;
    while ((fds[count] = open("w", O_RDONLY)) >= 0)
        count++;
    CHECK(errno == EMFILE && count > 500);
    pid_t pid = fork();
    if (pid == 0) {
        for (int i = 0; i < count; i++)
            CHECK(lseek(fds[i], 8, SEEK_SET) == 8);
        _exit(0);
    }
    CHECK(wait_ok(pid));
    for (int i = 0; i < count; i++)
        CHECK(offset(fds[i]) == 8 && close(fds[i]) == 0);
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

static void credentials(void)
{
    if (geteuid() != 0)
        return;
    CHECK(chmod("w", 0600) == 0 && access("w", R_OK) == 0);
    CHECK(seteuid(65534) == 0);
    FAILS(open("w", O_RDONLY), EACCES);
    CHECK(seteuid(0) == 0);
    int fd = open("w", O_RDONLY);
    step(fd, 0);
    CHECK(close(fd) == 0 && chmod("w", 0644) == 0);
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "step") == 0) {
        int fd = atoi(argv[2]), at = atoi(argv[3]);
        if (at < 0)
            FAILS(fcntl(fd, F_GETFD), EBADF);
        else
            step(fd, at);
        return 0;
    }
    closefrom(3); /* what the test's runner left open */
    seen = mmap(0, WORDS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fill("w", WORDS);
    with_forked_children(), with_programs(), with_spawned_programs(), with_receivers(), by_proc();
    /* Where calls outside libc are not caught. */
    if (getenv("TIDEPOOL_PRELOAD_RAW"))
        with_unseen_children(), raw_calls();
    ranges(), credentials(), at_the_limit();
    readers(0), readers(20), writers(), many(10000);
    return 0;
}
