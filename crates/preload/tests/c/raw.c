/* System calls by the instruction itself, outside libc. Working directory in the pool. */
#include "check.h"
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <ucontext.h>

static long raw6(long n, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return result;
}
#define RAW(n, ...) RAW_(n, ##__VA_ARGS__, 0, 0, 0, 0, 0, 0)
#define RAW_(n, a, b, c, d, e, f, ...) raw6(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

/* Makes, renames, reads and removes a file of this name. */
static void works(const char *name)
{
    char other[100], back[100];
    struct stat st;
    snprintf(other, sizeof other, "%s.renamed", name);
    long fd = RAW(SYS_open, name, O_RDWR | O_CREAT | O_EXCL, 0640);
    if (fd < 0)
        fprintf(stderr, "open of %s: %ld\n", name, fd);
    CHECK(fd >= 0 && RAW(SYS_write, fd, "content", 7) == 7);
    CHECK(RAW(SYS_rename, name, other) == 0 && RAW(SYS_stat, name, &st) == -ENOENT);
    CHECK(RAW(SYS_newfstatat, AT_FDCWD, other, &st, 0) == 0 && st.st_size == 7 && (st.st_mode & 0777) == 0640);
    CHECK(RAW(SYS_lseek, fd, 0, SEEK_SET) == 0 && RAW(SYS_read, fd, back, 100) == 7 && memcmp(back, "content", 7) == 0);
    CHECK(RAW(SYS_close, fd) == 0 && RAW(SYS_unlink, other) == 0);
}

static void each_kind(void)
{
    char buf[4096], here[4096];
    struct stat st;
    struct iovec part = {buf, sizeof buf};
    works("plain");
    CHECK(RAW(SYS_mkdir, "d", 0755) == 0 && RAW(SYS_chdir, "d") == 0 && getcwd(here, sizeof here));
    CHECK(RAW(SYS_getcwd, buf, sizeof buf) == (long)strlen(here) + 1 && strcmp(buf, here) == 0);
    CHECK(RAW(SYS_getcwd, buf, 3) == -ERANGE && RAW(SYS_chdir, "..") == 0);
    CHECK(RAW(SYS_symlink, "d", "l") == 0 && RAW(SYS_readlink, "l", buf, 100) == 1 && buf[0] == 'd');
    CHECK(RAW(SYS_lstat, "l", &st) == 0 && S_ISLNK(st.st_mode) && RAW(SYS_unlink, "l") == 0 && RAW(SYS_rmdir, "d") == 0);
    put("m", "mapped");
    int fd = open("m", O_RDWR);
    char *map = (char *)RAW(SYS_mmap, 0, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK((long)map > 0 && memcmp(map, "mapped", 6) == 0 && RAW(SYS_munmap, map, 4096) == 0);
    CHECK(RAW(SYS_preadv, fd, &part, 1, 2, 0) == 4 && memcmp(buf, "pped", 4) == 0 && RAW(SYS_readv, fd, &part, 1) == 6);
    CHECK(RAW(SYS_chmod, "m", 0600) == 0 && RAW(SYS_truncate, "m", 3) == 0 && RAW(SYS_fstat, fd, &st) == 0 && st.st_size == 3);
    CHECK(RAW(SYS_access, "m", R_OK) == 0 && RAW(SYS_link, "m", "n") == 0 && RAW(SYS_ftruncate, fd, 1) == 0);
    CHECK(RAW(SYS_setxattr, "m", "user.k", "v", 1, 0) == 0 && RAW(SYS_getxattr, "n", "user.k", buf, 9) == 1);
    CHECK(RAW(SYS_unlink, "n") == 0 && RAW(SYS_unlink, "m") == 0 && close(fd) == 0 && RAW(SYS_read, fd, buf, 1) == -EBADF);
    CHECK(RAW(SYS_getpid) == getpid() && RAW(SYS_open, "/etc/passwd", O_RDONLY) >= 0 && RAW(SYS_open, "/nonexistent", 0) == -ENOENT);
    errno = 77;
    CHECK(RAW(SYS_open, "missing", O_RDONLY) == -ENOENT && errno == 77);
}

static volatile int handled, in_handler_failed;

static void counts(int signal)
{
    (void)signal;
    handled++;
}

/* A handler that makes calls of its own. */
static void calls(int signal)
{
    char name[40];
    (void)signal;
    snprintf(name, sizeof name, "in-handler-%ld-%d", RAW(SYS_gettid), handled++);
    works(name);
}

static void handle(int signal, void (*handler)(int), int flags, int all)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    if (all)
        sigfillset(&action.sa_mask);
    CHECK(sigaction(signal, &action, 0) == 0);
}

/* Signals held back in each way, and handlers that hold all of them back. */
static void masks(void)
{
    sigset_t all, before, now;
    sigfillset(&all);
    CHECK(sigprocmask(SIG_SETMASK, &all, &before) == 0);
    works("masked");
    CHECK(pthread_sigmask(SIG_BLOCK, &all, &now) == 0 && sigismember(&now, SIGUSR1) == 1);
    works("masked-again");
    unsigned long set = ~0ul, old = 0;
    CHECK(RAW(SYS_rt_sigprocmask, SIG_SETMASK, &set, &old, 8) == 0 && (old & 1ul << (SIGUSR1 - 1)));
    works("masked-by-instruction");
    handle(SIGUSR1, calls, 0, 1);
    raise(SIGUSR1);
    CHECK(handled == 0);
    set = 0;
    CHECK(RAW(SYS_rt_sigprocmask, SIG_SETMASK, &set, 0, 8) == 0 && handled == 1);
    /* While a call waits with its own mask. */
    CHECK(sigprocmask(SIG_SETMASK, &all, 0) == 0);
    raise(SIGUSR1);
    sigdelset(&all, SIGUSR1);
    CHECK(ppoll(0, 0, 0, &all) == -1 && errno == EINTR && handled == 2);
    raise(SIGUSR1);
    CHECK(sigsuspend(&all) == -1 && errno == EINTR && handled == 3);
    raise(SIGUSR1);
    CHECK(pselect(0, 0, 0, 0, 0, &all) == -1 && errno == EINTR && handled == 4);
    CHECK(sigprocmask(SIG_SETMASK, &before, &now) == 0 && sigismember(&now, SIGUSR1) == 1);
    CHECK(RAW(SYS_rt_sigprocmask, 9, &set, 0, 8) == -EINVAL && RAW(SYS_rt_sigprocmask, 0, 1, 0, 8) == -EFAULT);
}

/* A call that waits ends by a signal, or goes on, as its handler says. */
static void waiting(void)
{
    int ends[2];
    char byte;
    struct itimerval soon = {{0, 0}, {0, 20000}};
    CHECK(pipe(ends) == 0);
    handle(SIGALRM, counts, 0, 0);
    handled = 0;
    CHECK(setitimer(ITIMER_REAL, &soon, 0) == 0 && RAW(SYS_read, ends[0], &byte, 1) == -EINTR && handled == 1);
    handle(SIGALRM, counts, SA_RESTART, 0);
    pid_t pid = fork();
    if (pid == 0) {
        usleep(300000);
        RAW(SYS_write, ends[1], "x", 1);
        RAW(SYS_exit_group, 0);
    }
    CHECK(setitimer(ITIMER_REAL, &soon, 0) == 0 && RAW(SYS_read, ends[0], &byte, 1) == 1 && byte == 'x' && handled == 2);
    CHECK(wait_ok(pid));
}

/* On a small stack for signals, where the dispatch comes, while other handlers come to the same stack. */
static void small_stacks(void)
{
    size_t size = sysconf(_SC_MINSIGSTKSZ) + 6144;
    char *memory = mmap(0, size + 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    /* What lies below must not be touched. */
    CHECK(mprotect(memory, 4096, PROT_NONE) == 0);
    stack_t stack = {.ss_sp = memory + 4096, .ss_size = size}, told;
    CHECK(RAW(SYS_sigaltstack, &stack, 0) == 0 && RAW(SYS_sigaltstack, 0, &told) == 0 && told.ss_sp == stack.ss_sp && told.ss_size == size);
    CHECK(sigaltstack(0, &told) == 0 && told.ss_sp == stack.ss_sp);
    handle(SIGALRM, counts, SA_ONSTACK | SA_RESTART, 0);
    handled = 0;
    struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &often, 0) == 0);
    for (int i = 0; i < 2000 || handled < 20; i++)
        works("small");
    CHECK(setitimer(ITIMER_REAL, &never, 0) == 0);
    CHECK(sigaltstack(0, &told) == 0 && told.ss_sp == stack.ss_sp && told.ss_size == size && told.ss_flags == 0);
    told.ss_flags = SS_DISABLE;
    CHECK(RAW(SYS_sigaltstack, &told, 0) == 0);
    works("none");
}

/* The end of a handler by an instruction of the program's. */
__asm__(".globl own_restorer\nown_restorer: mov $15, %eax\nsyscall\n");
void own_restorer(void);

static void own_end_of_handler(void)
{
    struct { void *handler; unsigned long flags; void *restorer; unsigned long mask; } action = {calls, 0x04000000, own_restorer, ~0ul}, old;
    handled = 0;
    CHECK(RAW(SYS_rt_sigaction, SIGUSR2, &action, 0, 8) == 0);
    for (int i = 0; i < 100; i++)
        CHECK(RAW(SYS_tgkill, getpid(), gettid(), SIGUSR2) == 0 && handled == i + 1);
    CHECK(RAW(SYS_rt_sigaction, SIGUSR2, 0, &old, 8) == 0 && old.handler == calls);
    works("after-handlers");
}

static void *in_thread(void *name)
{
    for (int i = 0; i < 200; i++)
        works(name);
    return name;
}

static void threads(void)
{
    pthread_t all[4];
    char names[4][20];
    void *result;
    for (int i = 0; i < 4; i++) {
        snprintf(names[i], 20, "thread%d", i);
        CHECK(pthread_create(&all[i], 0, in_thread, names[i]) == 0);
    }
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(all[i], &result) == 0 && result == names[i]);
}

static int on_own_stack(void *argument)
{
    *(int *)argument = 1;
    return 0;
}

static void leave_if(int right)
{
    RAW(SYS_exit_group, !right);
}

/* What a child does before it is another program: its directory, and a file. */
static void becomes(char *self)
{
    char *arguments[] = {self, "again", 0};
    if (RAW(SYS_chdir, "sub") != 0)
        RAW(SYS_exit_group, 7);
    long fd = RAW(SYS_open, "output", O_CREAT | O_WRONLY | O_TRUNC, 0644);
    if (RAW(SYS_dup2, fd, 1) != 1)
        RAW(SYS_exit_group, 8);
    RAW(SYS_execve, self, arguments, environ);
    RAW(SYS_exit_group, 9);
}

static void children(char *self)
{
    CHECK(RAW(SYS_mkdir, "sub", 0755) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        works("forked");
        RAW(SYS_exit_group, 0);
    }
    CHECK(wait_ok(pid));
    pid = RAW(SYS_fork);
    if (pid == 0) {
        works("forked-by-instruction");
        put("noticed", "x");
        RAW(SYS_exit_group, 0);
    }
    CHECK(wait_ok(pid));
    expect("noticed", "x");
    pid = RAW(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0)
        leave_if(RAW(SYS_access, "noticed", F_OK) == 0);
    CHECK(wait_ok(pid));
    pid = RAW(SYS_vfork);
    if (pid == 0)
        becomes(self);
    CHECK(wait_ok(pid));
    /* A child on a stack of its own, in the same memory; then this thread goes on. */
    static char stack[65536];
    int ran = 0;
    pid = clone(on_own_stack, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &ran);
    CHECK(wait_ok(pid) && ran == 1);
    works("after-clone");
    /* The same by an instruction: the child begins with the parent's registers. No call of libc comes before the next. */
    struct clone_args arguments = {.flags = CLONE_VM | CLONE_VFORK, .exit_signal = SIGCHLD, .stack = (long)stack, .stack_size = sizeof stack};
    struct { long number, first, second; } ways[] = {
        {SYS_clone, CLONE_VM | CLONE_VFORK | SIGCHLD, (long)(stack + sizeof stack)},
        {SYS_clone, CLONE_VM | SIGCHLD, (long)(stack + sizeof stack)},
        {SYS_clone3, (long)&arguments, sizeof arguments},
    };
    for (int i = 0; i < 3; i++) {
        long end, first = ways[i].first, second = ways[i].second;
        memset(stack, 0, sizeof stack);
        __asm__ volatile("syscall\n test %%rax, %%rax\n jnz 1f\n push %%rdi\n push %%rsi\n mov $60, %%eax\n mov $5, %%edi\n syscall\n1:"
                         : "=a"(end), "+D"(first), "+S"(second) : "a"(ways[i].number) : "rcx", "r11", "memory");
        works("after-clone-by-instruction");
        int status;
        CHECK(end > 0 && first == ways[i].first && second == ways[i].second && waitpid(end, &status, 0) == end && WEXITSTATUS(status) == 5);
        /* The child had its arguments where it began, and its stack was where the program said. */
        long *top = (long *)(stack + sizeof stack);
        CHECK(top[-1] == ways[i].first && top[-2] == ways[i].second);
    }
    /* As vfork does, on the parent's stack: what Go and others do to run a program. */
    arguments = (struct clone_args){.flags = CLONE_VM | CLONE_VFORK, .exit_signal = SIGCHLD};
    ways[0] = (typeof(ways[0])){SYS_clone, CLONE_VM | CLONE_VFORK | SIGCHLD, 0};
    ways[1] = (typeof(ways[0])){SYS_clone3, (long)&arguments, sizeof arguments};
    int pidfd = -1;
    ways[2] = (typeof(ways[0])){SYS_clone, CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, 0};
    for (int i = 0; i < 3; i++) {
        pid = RAW(ways[i].number, ways[i].first, ways[i].second, &pidfd);
        if (pid == 0)
            becomes(self);
        works("after-vfork-by-instruction");
        CHECK(wait_ok(pid));
    }
    CHECK(pidfd >= 0 && close(pidfd) == 0);
    arguments.flags = 0;
    pid = RAW(SYS_clone3, &arguments, sizeof arguments);
    if (pid == 0)
        becomes(self);
    works("after-clone3");
    CHECK(wait_ok(pid));
    CHECK(RAW(SYS_clone3, 0, sizeof arguments) == -EFAULT && RAW(SYS_clone3, &arguments, 8) == -EINVAL);
    CHECK(RAW(SYS_clone3, &arguments, 1 << 20) == -E2BIG);
}

static volatile int enough;

static void *until_enough(void *name)
{
    while (!enough)
        works(name);
    return 0;
}

/* Children made by the instruction while other threads are at work on the pool. */
static void children_beside_threads(void)
{
    pthread_t all[2];
    CHECK(pthread_create(&all[0], 0, until_enough, "beside0") == 0 && pthread_create(&all[1], 0, until_enough, "beside1") == 0);
    for (int i = 0; i < 60; i++) {
        long flags[] = {SIGCHLD, CLONE_VM | CLONE_VFORK | SIGCHLD};
        pid_t pid = RAW(SYS_clone, flags[i % 2], 0, 0, 0, 0);
        if (pid == 0) {
            works(i % 2 ? "vforked-beside" : "forked-beside");
            RAW(SYS_exit_group, 0);
        }
        works("parent-beside");
        CHECK(wait_ok(pid));
    }
    enough = 1;
    CHECK(pthread_join(all[0], 0) == 0 && pthread_join(all[1], 0) == 0);
}

/* si_code of a call that seccomp caught. */
enum { BY_SECCOMP = 1 };
static volatile int other_code;

static void others(int signal, siginfo_t *info, void *context)
{
    CHECK(signal == SIGSYS);
    other_code = info->si_code;
    if (info->si_code == BY_SECCOMP)
        ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = 4242;
    works("in-the-programs-sigsys");
}

/* Programs that use SIGSYS themselves. */
static void sigsys(void)
{
    struct sigaction action = {.sa_sigaction = others, .sa_flags = SA_SIGINFO}, old;
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        kill(getpid(), SIGSYS);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
    CHECK(sigaction(SIGSYS, &action, &old) == 0 && old.sa_handler == SIG_DFL);
    CHECK(sigaction(SIGSYS, 0, &old) == 0 && old.sa_sigaction == others && (old.sa_flags & SA_SIGINFO));
    CHECK(kill(getpid(), SIGSYS) == 0 && other_code == SI_USER);
    works("beside-a-handler");
    /* As browsers and sandboxes do. */
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, filter};
    pid = fork();
    if (pid == 0) {
        CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
        CHECK(getppid() == 4242 && other_code == BY_SECCOMP);
        works("in-a-sandbox");
        _exit(0);
    }
    CHECK(wait_ok(pid));
    CHECK(signal(SIGSYS, SIG_IGN) == (void *)others && kill(getpid(), SIGSYS) == 0 && signal(SIGSYS, SIG_DFL) == SIG_IGN);
    works("beside-nothing");
}

static void switched_off(char *self)
{
    setenv("TIDEPOOL_PRELOAD_RAW", "off", 1);
    pid_t pid = fork();
    if (pid == 0) {
        execl(self, self, "off", (char *)0);
        _exit(9);
    }
    CHECK(wait_ok(pid));
}

int main(int count, char **arguments)
{
    if (count > 1 && strcmp(arguments[1], "off") == 0) {
        put("seen", "by libc");
        return RAW(SYS_open, "seen", O_RDONLY) != -ENOENT;
    }
    each_kind();
    if (count > 1 && strcmp(arguments[1], "again") == 0) {
        char here[4096], *last = getcwd(here, sizeof here) ? strrchr(here, '/') : 0;
        CHECK(last && strcmp(last, "/sub") == 0 && puts("ran") > 0 && fflush(stdout) == 0);
        expect("output", "ran\n");
        return unlink("output");
    }
    masks(), waiting(), small_stacks(), own_end_of_handler(), threads(), children(arguments[0]), children_beside_threads(), sigsys();
    switched_off(arguments[0]);
    return 0;
}
