/* What every test program needs: a failed check says where and ends the program. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x)                                                                                  \
    do {                                                                                          \
        if (!(x)) {                                                                               \
            fprintf(stderr, "%s:%d: %s (errno %d %s)\n", __FILE__, __LINE__, #x, errno,           \
                    strerror(errno));                                                             \
            _exit(1);                                                                             \
        }                                                                                         \
    } while (0)

/* The call fails with this error. */
#define FAILS(x, code)                                                                            \
    do {                                                                                          \
        errno = 0;                                                                                \
        CHECK((x) == -1);                                                                         \
        CHECK(errno == (code));                                                                   \
    } while (0)

static inline int wait_ok(pid_t pid)
{
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static inline void put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0);
    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    CHECK(close(fd) == 0);
}

static inline void expect(const char *path, const char *text)
{
    char buf[4096];
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    ssize_t n = read(fd, buf, sizeof buf - 1);
    CHECK(n >= 0);
    buf[n] = 0;
    if (strcmp(buf, text) != 0)
        fprintf(stderr, "%s holds '%s'\n", path, buf);
    CHECK(strcmp(buf, text) == 0);
    close(fd);
}
