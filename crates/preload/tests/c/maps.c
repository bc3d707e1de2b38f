/* Memory mappings and locks. Working directory in the pool. */
#include "check.h"

static void private_maps(void)
{
    put("p", "private text");
    int fd = open("p", O_RDONLY);
    char *map = mmap(0, 12, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(map != MAP_FAILED && close(fd) == 0 && memcmp(map, "private text", 12) == 0);
    map[0] = 'X';
    expect("p", "private text");
    CHECK(munmap(map, 12) == 0);
}

static void shared_maps(void)
{
    char buf[8];
    int fd = open("m", O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(ftruncate(fd, 3 * 4096) == 0);
    char *a = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *b = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 4096);
    CHECK(a != MAP_FAILED && b != MAP_FAILED);
    b[1] = 'b';
    CHECK(a[4097] == 'b'); /* one object, one memory */
    memcpy(a, "first", 5);
    CHECK(pread(fd, buf, 5, 0) == 5 && memcmp(buf, "first", 5) == 0);
    CHECK(pwrite(fd, "second", 6, 0) == 6 && memcmp(a, "second", 6) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        a[10] = 'c';
        CHECK(msync(a, 4096, MS_SYNC) == 0);
        _exit(0);
    }
    CHECK(wait_ok(pid) && a[10] == 'c');
    a[8000] = 'z';
    CHECK(munmap(a, 8192) == 0 && pread(fd, buf, 1, 8000) == 1 && buf[0] == 'z');
    struct stat st;
    CHECK(fstat(fd, &st) == 0 && st.st_size == 3 * 4096);
    CHECK(ftruncate(fd, 5 * 4096) == 0);
    char *c = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 4 * 4096);
    CHECK(c != MAP_FAILED);
    c[0] = 'g';
    CHECK(close(fd) == 0);
    c[1] = 'h'; /* the mapping outlives the descriptor; exit writes it back */
    exit(0);
}

static void lock_child(struct flock *lock, int command, int wanted)
{
    pid_t pid = fork();
    if (pid == 0) {
        int fd = open("lock", O_RDWR);
        errno = 0;
        int result = fcntl(fd, command, lock);
        _exit(!(wanted == 0 ? result == 0 : result == -1 && errno == wanted));
    }
    CHECK(wait_ok(pid));
}

static void locks(void)
{
    put("lock", "lock");
    int fd = open("lock", O_RDWR);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 10};
    CHECK(fcntl(fd, F_SETLK, &lock) == 0 && fcntl(fd, F_SETLK, &lock) == 0);
    lock_child(&lock, F_SETLK, EAGAIN);
    struct flock other = lock;
    other.l_start = 20;
    lock_child(&other, F_SETLK, 0);
    pid_t pid = fork(), parent = getppid();
    (void)parent;
    if (pid == 0) {
        struct flock asked = lock;
        int own = open("lock", O_RDWR);
        CHECK(fcntl(own, F_GETLK, &asked) == 0 && asked.l_type == F_WRLCK && asked.l_pid == getppid());
        CHECK(asked.l_start == 10 && asked.l_len == 10);
        _exit(0);
    }
    CHECK(wait_ok(pid));
    close(open("lock", O_RDONLY)); /* POSIX: this drops the lock */
    lock_child(&lock, F_SETLK, 0);
    CHECK(flock(fd, LOCK_EX) == 0);
    pid = fork();
    if (pid == 0) {
        int own = open("lock", O_RDWR);
        FAILS(flock(own, LOCK_EX | LOCK_NB), EWOULDBLOCK);
        CHECK(flock(fd, LOCK_EX | LOCK_NB) == 0); /* the same description */
        _exit(0);
    }
    CHECK(wait_ok(pid));
    pid = fork();
    if (pid == 0) {
        alarm(10);
        int own = open("lock", O_RDWR);
        CHECK(flock(own, LOCK_EX) == 0);
        _exit(0);
    }
    usleep(30000);
    CHECK(flock(fd, LOCK_UN) == 0 && wait_ok(pid));
}

static void exclusive(void)
{
    put("x", "0123456789");
    int fd = open("x", O_RDWR);
    char *map = mmap(0, 10, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    int status = system("python3 -c \"import mmap; f=open('x','r+b'); mmap.mmap(f.fileno(),10)\" 2>/dev/null");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    CHECK(munmap(map, 10) == 0);
    CHECK(system("python3 -c \"import mmap; f=open('x','r+b'); mmap.mmap(f.fileno(),10)\"") == 0);
    close(fd);
}

int main(void)
{
    char buf[2];
    private_maps();
    pid_t pid = fork();
    if (pid == 0)
        shared_maps();
    CHECK(wait_ok(pid));
    int fd = open("m", O_RDONLY);
    CHECK(pread(fd, buf, 2, 4 * 4096) == 2 && buf[0] == 'g' && buf[1] == 'h');
    locks(), exclusive();
    return 0;
}
