/* Descriptors of pool files: duplicates, flags, inheritance, passing, the client's hidden ones.
 * Runs with its working directory in the pool. */
#include "check.h"

static void offsets_and_flags(void)
{
    char buf[16];
    int fd = open("o", O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0 && write(fd, "0123456789", 10) == 10);
    int twin = dup(fd);
    CHECK(lseek(fd, 3, SEEK_SET) == 3 && lseek(twin, 0, SEEK_CUR) == 3);
    CHECK(read(twin, buf, 2) == 2 && buf[0] == '3' && lseek(fd, 0, SEEK_CUR) == 5);
    CHECK(pread(fd, buf, 10, 8) == 2 && buf[0] == '8' && lseek(fd, 0, SEEK_CUR) == 5);
    CHECK(read(fd, buf, 16) == 5 && read(fd, buf, 16) == 0 && lseek(fd, 0, SEEK_CUR) == 10);
    CHECK(lseek(fd, -2, SEEK_END) == 8);
    FAILS(lseek(fd, -20, SEEK_END), EINVAL);
    FAILS(lseek(fd, -20, SEEK_SET), EINVAL);
    CHECK(dup2(fd, 77) == 77 && dup2(fd, fd) == fd && close(fd) == 0 && close(twin) == 0);
    FAILS(read(fd, buf, 1), EBADF);
    CHECK(read(77, buf, 16) == 2);
    CHECK((fcntl(77, F_GETFL) & (O_ACCMODE | O_APPEND)) == O_RDWR);
    CHECK(fcntl(77, F_SETFL, O_APPEND) == 0 && (fcntl(77, F_GETFL) & O_APPEND));
    CHECK(lseek(77, 0, SEEK_SET) == 0 && write(77, "ab", 2) == 2 && lseek(77, 0, SEEK_CUR) == 12);
    CHECK(fcntl(77, F_GETFD) == 0 && fcntl(77, F_SETFD, FD_CLOEXEC) == 0 && fcntl(77, F_GETFD) == FD_CLOEXEC);
    int high = fcntl(77, F_DUPFD_CLOEXEC, 90);
    CHECK(high >= 90 && pread(high, buf, 2, 10) == 2 && buf[0] == 'a');
    close(77), close(high);
    fd = open("o", O_RDONLY);
    FAILS(write(fd, "x", 1), EBADF);
    FAILS(ftruncate(fd, 0), EINVAL);
    close(fd);
    fd = open("o", O_WRONLY);
    FAILS(read(fd, buf, 1), EBADF);
    close(fd);
    FAILS(open("o", O_RDWR | O_CREAT | O_EXCL, 0644), EEXIST);
    FAILS(open("o/x", O_RDONLY), ENOTDIR);
    FAILS(open("none", O_RDONLY), ENOENT);
    FAILS(open(".", O_RDWR), EISDIR);
    FAILS(open("o", O_RDONLY | O_DIRECTORY), ENOTDIR);
    FAILS(open(".", O_TMPFILE | O_RDWR, 0600), EOPNOTSUPP);
    errno = 7;
    CHECK((fd = open("o", O_RDONLY)) >= 0 && errno == 7);
    close(fd);
    CHECK(errno == 7);
}

static void inherited(void)
{
    int fd = open("i", O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0 && write(fd, "head\n", 5) == 5);
    pid_t pid = fork();
    if (pid == 0) {
        CHECK(write(fd, "child\n", 6) == 6);
        dup2(fd, 1);
        execl("/bin/echo", "echo", "program", (char *)0);
        _exit(1);
    }
    CHECK(wait_ok(pid) && write(fd, "tail\n", 5) == 5);
    close(fd);
    expect("i", "head\nchild\nprogram\ntail\n");
}

static void nameless(void)
{
    char buf[8];
    int fd = open("gone", O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0 && write(fd, "alive", 5) == 5 && unlink("gone") == 0);
    FAILS(open("gone", O_RDONLY), ENOENT);
    int go[2];
    CHECK(pipe(go) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        CHECK(read(go[0], buf, 1) == 1);
        CHECK(pread(fd, buf, 8, 0) == 5 && memcmp(buf, "alive", 5) == 0);
        _exit(0);
    }
    usleep(50000); /* the child registers itself at fork; then we let go */
    CHECK(close(fd) == 0 && write(go[1], "x", 1) == 1 && wait_ok(pid));
}

static void passed(void)
{
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    char data = 'x', control[CMSG_SPACE(sizeof(int))];
    struct iovec iov = {&data, 1};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    pid_t pid = fork();
    if (pid == 0) {
        CHECK(recvmsg(pair[1], &message, 0) == 1);
        int fd = *(int *)CMSG_DATA(CMSG_FIRSTHDR(&message));
        char buf[8];
        struct stat st;
        CHECK(fstat(fd, &st) == 0 && st.st_size == 24 && read(fd, buf, 4) == 4 && memcmp(buf, "head", 4) == 0);
        _exit(0);
    }
    int fd = open("i", O_RDONLY);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK(sendmsg(pair[0], &message, 0) == 1 && wait_ok(pid) && lseek(fd, 0, SEEK_CUR) == 4);
    close(fd), close(pair[0]), close(pair[1]);
}

static void spawned(void)
{
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "spawned", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    char *argv[] = {"sh", "-c", "echo out; echo err >&2", 0};
    pid_t pid;
    CHECK(posix_spawn(&pid, "/bin/sh", &actions, 0, argv, environ) == 0 && wait_ok(pid));
    expect("spawned", "out\nerr\n");
    posix_spawn_file_actions_destroy(&actions);
    posix_spawn_file_actions_init(&actions);
    CHECK(mkdir("sub", 0755) == 0);
    posix_spawn_file_actions_addchdir_np(&actions, "sub");
    char *touch[] = {"touch", "here", 0};
    CHECK(posix_spawnp(&pid, "touch", &actions, 0, touch, environ) == 0 && wait_ok(pid));
    CHECK(access("sub/here", F_OK) == 0 && access("here", F_OK) == -1);
    CHECK(system("echo system > sys; pwd -P > pwd") == 0);
    expect("sys", "system\n");
    FILE *f = popen("cat sys", "r");
    char line[64];
    CHECK(f && fgets(line, sizeof line, f) && strcmp(line, "system\n") == 0 && pclose(f) == 0);
    put("script", "#!/bin/sh\necho \"$0 $1\" > ran\n");
    CHECK(chmod("script", 0755) == 0);
    char *script[] = {"x", "arg", 0};
    CHECK(posix_spawn(&pid, "./script", 0, 0, script, environ) == 0 && wait_ok(pid));
    expect("ran", "./script arg\n");
}

static void hidden(void)
{
    int mine = open("o", O_RDONLY), null = open("/dev/null", O_RDONLY);
    CHECK(mine >= 0 && null >= 0);
    for (int fd = 200; fd < 1100; fd++)
        close(fd);
    CHECK(access("o", F_OK) == 0);
    CHECK(close_range(50, ~0u, 0) == 0 && access("o", F_OK) == 0);
    closefrom(3);
    CHECK(access("o", F_OK) == 0);
    FAILS(read(mine, &mine, 1), EBADF);
    int again = open("o", O_RDONLY);
    CHECK(again == 3 && close(again) == 0);
    CHECK((null = open("/dev/zero", O_RDONLY)) == 3);
    char c = 1;
    CHECK(read(3, &c, 1) == 1 && c == 0 && close(3) == 0);
}

static void by_number(void)
{
    int fd = syscall(SYS_openat, AT_FDCWD, "o", O_RDWR, 0);
    char buf[4096];
    CHECK(fd >= 0 && syscall(SYS_read, fd, buf, 4) == 4 && memcmp(buf, "0123", 4) == 0);
    CHECK(syscall(SYS_close, fd) == 0);
    FAILS(read(fd, buf, 1), EBADF);
    fd = open(".", O_RDONLY | O_DIRECTORY);
    CHECK(syscall(SYS_getdents64, fd, buf, sizeof buf) > 0);
    FAILS(read(fd, buf, 1), EISDIR);
    close(fd);
    FAILS(syscall(SYS_copy_file_range, open("o", O_RDONLY), 0, 1, 0, 5, 0), EXDEV);
}

int main(void)
{
    offsets_and_flags(), inherited(), nameless(), passed(), spawned(), by_number(), hidden();
    return 0;
}
