/* The thirteen faults of the reference (NORNS 0.9.0), one for each number: this program ends with 0 where
 * the fault is not there. It uses what the reference has as well, but for norns_cancel. */
#include <errno.h>
#include <norns.h>
#include <nornsctl.h>
#include <pthread.h>
#include <sys/inotify.h>
#include <sys/mman.h>

#include "files.h"

static norns_stat_t done(norns_iotask_t task) {
    norns_stat_t stats;
    memset(&stats, 0xff, sizeof stats);
    CHECK(norns_submit(&task) == NORNS_SUCCESS);
    CHECK(norns_wait(&task, NULL) == NORNS_SUCCESS);
    CHECK(norns_error(&task, &stats) == NORNS_SUCCESS);
    return stats;
}

static norns_stat_t copy(const char *from, const char *to) {
    return done(NORNS_IOTASK(NORNS_IOTASK_COPY, NORNS_LOCAL_PATH("a://", from), NORNS_LOCAL_PATH("b://", to)));
}

/* 1: overwriting a longer file left its end. */
static void overwriting(void) {
    char *longer = pattern(1 << 20);
    put(at("B", "out"), longer, 1 << 20);
    put(at("A", "in"), longer + 7, 4096);
    CHECK(copy("in", "out").st_status == NORNS_EFINISHED);
    CHECK(holds(at("B", "out"), longer + 7, 4096));
}

/* 2: an empty file was an error, and the end of a directory's copy. */
static void empty_files(void) {
    put(at("A", "empty"), "", 0);
    CHECK(copy("empty", "empty").st_status == NORNS_EFINISHED && holds(at("B", "empty"), "", 0));
    CHECK(mkdir(at("A", "d"), 0755) == 0);
    put(at("A", "d/a"), "", 0);
    put(at("A", "d/b"), "xyz", 3);
    put(at("A", "d/c"), "", 0);
    CHECK(copy("d", "d").st_status == NORNS_EFINISHED);
    CHECK(holds(at("B", "d/a"), "", 0) && holds(at("B", "d/b"), "xyz", 3) && holds(at("B", "d/c"), "", 0));
}

/* 3: copying to a remote namespace that is not there was a success. argument: where a stager listens. */
static void remote_namespace(const char *address) {
    put(at("A", "in"), "xyz", 3);
    norns_iotask_t task = NORNS_IOTASK(NORNS_IOTASK_COPY, NORNS_LOCAL_PATH("a://", "in"),
                                       NORNS_REMOTE_PATH("nowhere://", address, "out"));
    norns_stat_t stats = done(task);
    CHECK(stats.st_status == NORNS_EFINISHEDWERROR && stats.st_task_error != NORNS_SUCCESS);
}

/* 4: symbolic links in a directory vanished. */
static void links(void) {
    char target[64] = "";
    CHECK(mkdir(at("A", "d"), 0755) == 0);
    put(at("A", "d/file"), "xyz", 3);
    CHECK(symlink("file", at("A", "d/link")) == 0 && symlink("absent", at("A", "d/dangling")) == 0);
    CHECK(copy("d", "d").st_status == NORNS_EFINISHED);
    CHECK(readlink(at("B", "d/link"), target, sizeof target) == 4 && !memcmp(target, "file", 4));
    CHECK(readlink(at("B", "d/dangling"), target, sizeof target) == 6 && !memcmp(target, "absent", 6));
}

/* 5: copying to a shared path was a success without a copy. */
static void shared_paths(void) {
    put(at("A", "in"), "xyz", 3);
    norns_stat_t stats =
        done(NORNS_IOTASK(NORNS_IOTASK_COPY, NORNS_LOCAL_PATH("a://", "in"), NORNS_SHARED_PATH("b://", "out")));
    CHECK(stats.st_status == NORNS_EFINISHED && holds(at("B", "out"), "xyz", 3));
}

/* 6: a move left its source. */
static void moving(void) {
    put(at("A", "in"), "xyz", 3);
    CHECK(mkdir(at("A", "d"), 0755) == 0);
    put(at("A", "d/file"), "12345", 5);
    norns_stat_t file = done(NORNS_IOTASK(NORNS_IOTASK_MOVE, NORNS_LOCAL_PATH("a://", "in"), NORNS_LOCAL_PATH("b://", "out")));
    norns_stat_t tree = done(NORNS_IOTASK(NORNS_IOTASK_MOVE, NORNS_LOCAL_PATH("a://", "d"), NORNS_LOCAL_PATH("b://", "d")));
    CHECK(file.st_status == NORNS_EFINISHED && holds(at("B", "out"), "xyz", 3) && !there(at("A", "in")));
    CHECK(tree.st_status == NORNS_EFINISHED && holds(at("B", "d/file"), "12345", 5) && !there(at("A", "d")));
}

/* 7: norns_cancel was declared and nowhere. One worker, kept busy, so that the second task is still pending. */
static void cancelling(void) {
    char *bytes = pattern(16 << 20);
    put(at("A", "large"), bytes, 16 << 20);
    norns_iotask_t busy = NORNS_IOTASK(NORNS_IOTASK_COPY, NORNS_LOCAL_PATH("a://", "large"), NORNS_LOCAL_PATH("slow://", "large"));
    norns_iotask_t task = NORNS_IOTASK(NORNS_IOTASK_COPY, NORNS_LOCAL_PATH("a://", "large"), NORNS_LOCAL_PATH("b://", "never"));
    norns_stat_t stats;
    CHECK(norns_submit(&busy) == NORNS_SUCCESS && norns_submit(&task) == NORNS_SUCCESS);
    CHECK(norns_cancel(&task) == NORNS_SUCCESS && norns_wait(&task, NULL) == NORNS_SUCCESS);
    CHECK(norns_error(&task, &stats) == NORNS_SUCCESS && stats.st_task_error == NORNS_ECANCELED);
    CHECK(norns_cancel(&busy) == NORNS_SUCCESS && norns_wait(&busy, NULL) == NORNS_SUCCESS);
    CHECK(!there(at("B", "never")) && !there(at("B", "large")));
}

/* 8: a call from a second thread ended the process. */
static void *in_a_thread(void *unused) {
    CHECK(copy("in", "out").st_status == NORNS_EFINISHED);
    nornsctl_stat_t stats;
    CHECK(nornsctl_status(&stats) == NORNS_SUCCESS);
    return unused;
}

static void second_thread(void) {
    pthread_t thread;
    put(at("A", "in"), "xyz", 3);
    CHECK(pthread_create(&thread, NULL, in_a_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(holds(at("B", "out"), "xyz", 3));
}

/* 9: administration was open to everybody on the user socket. Both sockets are that one here. */
static void administration(void) {
    nornsctl_backend_t backend = NORNSCTL_BACKEND(NORNS_BACKEND_POSIX_FILESYSTEM, false, "/etc", 1);
    CHECK(nornsctl_register_namespace("etc://", &backend) == NORNS_EPERM);
    CHECK(nornsctl_unregister_namespace("a://") == NORNS_EPERM && nornsctl_unregister_job(42) == NORNS_EPERM);
    CHECK(nornsctl_send_command(NORNSCTL_CMD_PAUSE_LISTEN, NULL) == NORNS_EPERM);
    CHECK(nornsctl_add_process(42, getuid(), getgid(), getpid()) == NORNS_EPERM);
    norns_iotask_t task = NORNS_IOTASK(NORNS_IOTASK_COPY, NORNS_LOCAL_PATH("etc://", "shadow"), NORNS_LOCAL_PATH("b://", "shadow"));
    CHECK(norns_submit(&task) == NORNS_ENOSUCHNAMESPACE);
}

/* 10: submitting walked the whole source, and nobody else was served meanwhile. One worker, kept busy: who opens
 * the source's directories before the task's turn does so in the submission. */
static void walking(void) {
    char name[64];
    CHECK(mkdir(at("A", "tree"), 0755) == 0);
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "tree/d%d", i);
        CHECK(mkdir(at("A", name), 0755) == 0);
    }
    char *bytes = pattern(16 << 20);
    put(at("A", "large"), bytes, 16 << 20);
    norns_iotask_t busy = NORNS_IOTASK(NORNS_IOTASK_COPY, NORNS_LOCAL_PATH("a://", "large"), NORNS_LOCAL_PATH("slow://", "large"));
    norns_iotask_t task = NORNS_IOTASK(NORNS_IOTASK_COPY, NORNS_LOCAL_PATH("a://", "tree"), NORNS_LOCAL_PATH("b://", "tree"));
    norns_stat_t stats;
    CHECK(norns_submit(&busy) == NORNS_SUCCESS);
    int watch = inotify_init1(IN_NONBLOCK);
    CHECK(watch >= 0 && inotify_add_watch(watch, at("A", "tree"), IN_OPEN | IN_ACCESS) >= 0);
    CHECK(norns_submit(&task) == NORNS_SUCCESS);
    CHECK(norns_error(&task, &stats) == NORNS_SUCCESS && stats.st_status == NORNS_EPENDING);
    CHECK(read(watch, name, sizeof name) == -1 && errno == EAGAIN);
    CHECK(norns_cancel(&busy) == NORNS_SUCCESS && norns_wait(&task, NULL) == NORNS_SUCCESS);
    CHECK(read(watch, name, sizeof name) > 0);
    CHECK(there(at("B", "tree/d19")));
}

/* 11: of a memory region of 4 GiB and more the size was cut to 32 bits. Cut, this would be 4 KiB and fit into the
 * 1 MiB that small:// takes. */
static void large_memory(void) {
    size_t size = (4ull << 30) + 4096;
    void *region = mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(region != MAP_FAILED);
    norns_iotask_t task = NORNS_IOTASK(NORNS_IOTASK_COPY, NORNS_MEMORY_REGION(region, size), NORNS_LOCAL_PATH("small://", "out"));
    norns_stat_t stats;
    norns_error_t submitted = norns_submit(&task);
    if (submitted == NORNS_SUCCESS) {
        CHECK(norns_wait(&task, NULL) == NORNS_SUCCESS && norns_error(&task, &stats) == NORNS_SUCCESS);
        CHECK(stats.st_status == NORNS_EFINISHEDWERROR && stats.st_sys_errno == EDQUOT);
        CHECK(stats.st_total == size || stats.st_total == 0);
    }
    CHECK(!there(at("B", "out")));
}

/* 12: tasks that nobody asks about stayed for ever. argument: how many the stager keeps. */
static void unasked(const char *kept) {
    norns_tid_t first = 0;
    norns_iotask_t task;
    norns_stat_t stats;
    put(at("A", "in"), "xyz", 3);
    for (int i = 0; i < atoi(kept) + 20; i++) {
        task = NORNS_IOTASK(NORNS_IOTASK_COPY, NORNS_LOCAL_PATH("a://", "in"), NORNS_LOCAL_PATH("b://", "out"));
        CHECK(norns_submit(&task) == NORNS_SUCCESS);
        first = first ? first : task.t_id;
    }
    CHECK(norns_wait(&task, NULL) == NORNS_SUCCESS);
    nornsctl_stat_t all;
    do
        CHECK(nornsctl_status(&all) == NORNS_SUCCESS);
    while (all.st_pending_tasks + all.st_running_tasks > 0);
    task.t_id = first;
    memset(&task.__t_status, 0, sizeof task.__t_status);
    CHECK(norns_error(&task, &stats) == NORNS_ENOSUCHTASK);
}

int main(int argc, char **argv) {
    const char *argument = argc > 2 ? argv[2] : "";
    CHECK(argc > 1);
    switch (atoi(argv[1])) {
    case 1: overwriting(); break;
    case 2: empty_files(); break;
    case 3: remote_namespace(argument); break;
    case 4: links(); break;
    case 5: shared_paths(); break;
    case 6: moving(); break;
    case 7: cancelling(); break;
    case 8: second_thread(); break;
    case 9: administration(); break;
    case 10: walking(); break;
    case 11: large_memory(); break;
    case 12: unasked(argument); break;
    default: return 2;
    }
    return 0;
}
