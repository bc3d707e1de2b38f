/* Every function of both libraries against a stager; memory has a program of its own. */
#include <errno.h>
#include <math.h>
#include <norns.h>
#include <nornsctl.h>
#include <sys/wait.h>

#include "files.h"

static const struct timespec none = {0, 0};

/* Submits, waits, and returns the state. */
static norns_stat_t done(norns_iotask_t task) {
    norns_stat_t stats;
    CHECK(norns_submit(&task) == NORNS_SUCCESS && task.t_id != 0);
    CHECK(norns_wait(&task, NULL) == NORNS_SUCCESS);
    CHECK(norns_error(&task, &stats) == NORNS_SUCCESS);
    return stats;
}

static void copies(void) {
    char *bytes = pattern(100000);
    put(at("A", "in"), bytes, 100000);
    norns_stat_t stats = done(NORNS_IOTASK(NORNS_IOTASK_COPY, NORNS_LOCAL_PATH("a://", "in"), NORNS_LOCAL_PATH("b://", "d/out")));
    CHECK(stats.st_status == NORNS_EFINISHED && stats.st_task_error == NORNS_SUCCESS);
    CHECK(stats.st_total == 100000 && stats.st_pending == 0);
    CHECK(holds(at("B", "d/out"), bytes, 100000) && there(at("A", "in")));

    stats = done(NORNS_IOTASK(NORNS_IOTASK_MOVE, NORNS_POSIX_PATH("b://", "d/out"), NORNS_POSIX_PATH("a://", "back")));
    CHECK(stats.st_status == NORNS_EFINISHED && !there(at("B", "d/out")) && holds(at("A", "back"), bytes, 100000));

    stats = done(NORNS_IOTASK(NORNS_IOTASK_REMOVE, NORNS_LOCAL_PATH("a://", "/../x/.././back")));
    CHECK(stats.st_status == NORNS_EFINISHED && !there(at("A", "back")));

    stats = done(NORNS_IOTASK(NORNS_IOTASK_COPY, NORNS_LOCAL_PATH("a://", "absent"), NORNS_LOCAL_PATH("b://", "x")));
    CHECK(stats.st_status == NORNS_ETASKERROR && stats.st_task_error == NORNS_ESYSTEMERROR && stats.st_sys_errno == ENOENT);

    norns_iotask_t unknown = NORNS_IOTASK(NORNS_IOTASK_COPY, NORNS_LOCAL_PATH("nowhere://", "in"), NORNS_LOCAL_PATH("b://", "x"));
    CHECK(norns_submit(&unknown) == NORNS_ENOSUCHNAMESPACE && unknown.t_id == 0);
    free(bytes);
}

/* Submitting and waiting at once: the same ends and the same errors as one after the other. */
static void at_once(void) {
    norns_stat_t stats;
    norns_resource_t in = NORNS_LOCAL_PATH("a://", "in"), out = NORNS_LOCAL_PATH("b://", "once");
    norns_iotask_t task = NORNS_IOTASK(NORNS_IOTASK_COPY, in, out);
    CHECK(norns_submit_wait(&task, NULL) == NORNS_SUCCESS && task.t_id != 0 && there(at("B", "once")));
    CHECK(norns_error(&task, &stats) == NORNS_SUCCESS && stats.st_status == NORNS_EFINISHED && stats.st_total == 100000);
    CHECK(norns_submit_wait(&task, NULL) == NORNS_EBADARGS && norns_submit_wait(NULL, NULL) == NORNS_EBADARGS);

    task = NORNSCTL_IOTASK(NORNS_IOTASK_COPY, NORNS_LOCAL_PATH("a://", "absent"), out);
    const struct timespec minute = {60, 0}, wrong = {0, -1};
    CHECK(nornsctl_submit_wait(&task, &wrong) == NORNS_EBADARGS && task.t_id == 0);
    CHECK(nornsctl_submit_wait(&task, &minute) == NORNS_SUCCESS && nornsctl_error(&task, &stats) == NORNS_SUCCESS);
    CHECK(stats.st_status == NORNS_ETASKERROR && stats.st_sys_errno == ENOENT);

    task = NORNS_IOTASK(NORNS_IOTASK_COPY, NORNS_LOCAL_PATH("nowhere://", "in"), out);
    CHECK(norns_submit_wait(&task, NULL) == NORNS_ENOSUCHNAMESPACE && task.t_id == 0);

    /* What takes longer has its number nevertheless. */
    char *bytes = pattern(8 << 20);
    put(at("A", "long"), bytes, 8 << 20);
    free(bytes);
    norns_resource_t from = NORNS_LOCAL_PATH("a://", "long"), to = NORNS_LOCAL_PATH("slow://", "long");
    const struct timespec timeouts[] = {{0, 0}, {0, 30000000}, {0, 200000000}};
    for (int i = 0; i < 3; i++) {
        task = NORNS_IOTASK(NORNS_IOTASK_COPY, from, to);
        CHECK(norns_submit_wait(&task, &timeouts[i]) == NORNS_ETIMEOUT && task.t_id != 0);
        CHECK(norns_cancel(&task) == NORNS_SUCCESS && norns_wait(&task, NULL) == NORNS_SUCCESS);
    }
}

/* A task that has not ended cannot be told from one that has by a second process, a copy of the
 * descriptor, or the number of questions. */
static void questions(void) {
    norns_iotask_t task = NORNS_IOTASK(NORNS_IOTASK_COPY, NORNS_LOCAL_PATH("a://", "in"), NORNS_LOCAL_PATH("b://", "q"));
    CHECK(norns_submit(&task) == NORNS_SUCCESS);
    norns_iotask_t copy = task;
    CHECK(norns_wait(&task, NULL) == NORNS_SUCCESS && norns_wait(&task, &none) == NORNS_SUCCESS);
    norns_stat_t stats;
    for (int i = 0; i < 3; i++) {
        CHECK(norns_error(&task, &stats) == NORNS_SUCCESS && stats.st_status == NORNS_EFINISHED);
        CHECK(norns_error(&copy, &stats) == NORNS_SUCCESS && stats.st_status == NORNS_EFINISHED);
    }
    pid_t child = fork();
    if (child == 0) {
        norns_stat_t other;
        CHECK(norns_error(&copy, &other) == NORNS_SUCCESS && other.st_status == NORNS_EFINISHED && other.st_total == 100000);
        CHECK(norns_submit(&copy) == NORNS_EBADARGS);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    copy.t_id = 0x7fffffff;
    CHECK(norns_wait(&copy, NULL) == NORNS_ENOSUCHTASK && norns_error(&copy, &stats) == NORNS_ENOSUCHTASK);
    CHECK(norns_cancel(&copy) == NORNS_ENOSUCHTASK && norns_cancel(&task) == NORNS_ETASKSTATE);
}

static void dataspaces(void) {
    nornsctl_backend_t backend = NORNSCTL_BACKEND(NORNS_BACKEND_POSIX_FILESYSTEM, true, getenv("B"), 7);
    CHECK(nornsctl_register_namespace("c://", &backend) == NORNS_SUCCESS);
    CHECK(nornsctl_register_dataspace("c://", &backend) == NORNS_ENAMESPACEEXISTS);
    backend.b_capacity = 9;
    CHECK(nornsctl_update_namespace("c://", &backend) == NORNS_SUCCESS);
    CHECK(nornsctl_update_dataspace("d://", &backend) == NORNS_ENOSUCHNAMESPACE);
    backend.b_mount = "/this/does/not/exist";
    CHECK(nornsctl_register_namespace("e://", &backend) == NORNS_EBADARGS);

    nornsctl_job_limit_t a = NORNSCTL_JOB_LIMIT("a://", 0), b = NORNSCTL_JOB_LIMIT("b://", 0), c = NORNSCTL_JOB_LIMIT("c://", 3),
                         slow = NORNSCTL_JOB_LIMIT("slow://", 0);
    nornsctl_job_limit_t *limits[] = {&a, &b, &c, &slow};
    const char *hosts[] = {"n0"};
    nornsctl_job_t job = NORNSCTL_JOB(hosts, 1, limits, 4);
    CHECK(nornsctl_update_job(42, &job) == NORNS_SUCCESS);
    norns_dataspace_info_t info;
    CHECK(norns_get_dataspace_info("c://", &info) == NORNS_SUCCESS);
    CHECK(info.di_type == NORNS_BACKEND_POSIX_FILESYSTEM && info.di_track && !strcmp(info.di_mount, getenv("B")));
    CHECK(info.di_capacity == 9u << 20 && info.di_quota == 3u << 20 && info.di_used == 0);
    CHECK(norns_get_dataspace_info("nowhere://", &info) == NORNS_ENOSUCHNAMESPACE);

    put(at("B", "left"), "x", 1);
    CHECK(nornsctl_unregister_namespace("c://") == NORNS_ENAMESPACENOTEMPTY);
    backend = NORNSCTL_BACKEND(NORNS_BACKEND_POSIX_FILESYSTEM, false, getenv("B"), 9);
    CHECK(nornsctl_update_namespace("c://", &backend) == NORNS_SUCCESS);
    CHECK(nornsctl_unregister_dataspace("c://") == NORNS_SUCCESS);
    CHECK(nornsctl_unregister_namespace("c://") == NORNS_ENOSUCHNAMESPACE);
}

static void jobs(void) {
    nornsctl_job_limit_t limit = NORNSCTL_JOB_LIMIT("a://", 1);
    nornsctl_job_limit_t *limits[] = {&limit};
    const char *hosts[] = {"n0", "n1"};
    nornsctl_job_t job = NORNSCTL_JOB(hosts, 2, limits, 1);
    CHECK(nornsctl_register_job(7, &job) == NORNS_SUCCESS && nornsctl_register_job(7, &job) == NORNS_EJOBEXISTS);
    CHECK(nornsctl_update_job(7, &job) == NORNS_SUCCESS && nornsctl_update_job(8, &job) == NORNS_ENOSUCHJOB);

    nornsctl_proc_t own;
    nornsctl_proc_init(&own, getpid(), getuid(), getgid());
    CHECK(nornsctl_add_process(7, getuid(), getgid(), getpid()) == NORNS_SUCCESS);
    CHECK(nornsctl_add_process(8, getuid(), getgid(), getpid()) == NORNS_ENOSUCHJOB);
    /* Now it belongs to job 7, which may not use b://. */
    norns_iotask_t task = NORNS_IOTASK(NORNS_IOTASK_COPY, NORNS_LOCAL_PATH("a://", "in"), NORNS_LOCAL_PATH("b://", "no"));
    CHECK(norns_submit(&task) == NORNS_EPERM && !there(at("B", "no")));
    CHECK(nornsctl_remove_process(7, getuid(), getgid(), getpid()) == NORNS_SUCCESS);
    CHECK(nornsctl_remove_process(7, getuid(), getgid(), getpid()) == NORNS_ENOSUCHPROCESS);
    CHECK(nornsctl_add_proc(7, &own) == NORNS_SUCCESS && nornsctl_remove_proc(7, &own) == NORNS_SUCCESS);
    CHECK(norns_submit(&task) == NORNS_SUCCESS && norns_wait(&task, NULL) == NORNS_SUCCESS);

    CHECK(nornsctl_unregister_job(7) == NORNS_SUCCESS && nornsctl_unregister_job(7) == NORNS_ENOSUCHJOB);
}

/* A task that takes long: the dataspace is slow. Ended by cancelling it. */
static void slow(void) {
    char *bytes = pattern(8 << 20);
    put(at("A", "large"), bytes, 8 << 20);
    CHECK(truncate(at("A", "large"), 1 << 30) == 0);
    norns_stat_t stats;
    nornsctl_stat_t all;
    norns_resource_t large = NORNS_LOCAL_PATH("a://", "large"), out = NORNS_LOCAL_PATH("slow://", "large");
    norns_iotask_t task = NORNSCTL_IOTASK(NORNS_IOTASK_COPY, large, out);
    CHECK(nornsctl_submit(&task) == NORNS_SUCCESS);
    CHECK(norns_wait(&task, &none) == NORNS_ETIMEOUT);
    const struct timespec little = {0, 30000000};
    CHECK(nornsctl_wait(&task, &little) == NORNS_ETIMEOUT);
    do
        CHECK(nornsctl_error(&task, &stats) == NORNS_SUCCESS);
    while (stats.st_total == 0);
    CHECK(stats.st_status == NORNS_EINPROGRESS && stats.st_pending > 0 && stats.st_pending <= stats.st_total);
    CHECK(nornsctl_status(&all) == NORNS_SUCCESS && all.st_running_tasks == 1 && all.st_pending_tasks == 0);
    CHECK(isnan(all.st_eta) || all.st_eta >= 0);
    CHECK(nornsctl_send_command(NORNSCTL_CMD_SHUTDOWN, NULL) == NORNS_ETASKSPENDING);

    CHECK(nornsctl_send_command(NORNSCTL_CMD_PAUSE_LISTEN, NULL) == NORNS_SUCCESS);
    norns_iotask_t other = NORNS_IOTASK(NORNS_IOTASK_COPY, NORNS_LOCAL_PATH("a://", "in"), NORNS_LOCAL_PATH("b://", "p"));
    CHECK(norns_submit(&other) == NORNS_EACCEPTPAUSED && nornsctl_submit(&other) == NORNS_EACCEPTPAUSED);
    CHECK(nornsctl_send_command(NORNSCTL_CMD_RESUME_LISTEN, NULL) == NORNS_SUCCESS);
    CHECK(norns_submit(&other) == NORNS_SUCCESS);

    CHECK(nornsctl_cancel(&task) == NORNS_SUCCESS);
    CHECK(nornsctl_wait(&task, NULL) == NORNS_SUCCESS && nornsctl_error(&task, &stats) == NORNS_SUCCESS);
    CHECK(stats.st_status == NORNS_EFINISHEDWERROR && stats.st_task_error == NORNS_ECANCELED);
    CHECK(!there(at("B", "large")));
    CHECK(nornsctl_wait(&other, NULL) == NORNS_SUCCESS);
    free(bytes);
}

int main(void) {
    errno = 77;
    CHECK(nornsctl_send_command(NORNSCTL_CMD_PING, NULL) == NORNS_SUCCESS);
    copies();
    questions();
    at_once();
    jobs();
    dataspaces();
    slow();
    errno = 77;
    nornsctl_stat_t all;
    CHECK(nornsctl_status(&all) == NORNS_SUCCESS && errno == 77);
    CHECK(all.st_running_tasks == 0 && all.st_pending_tasks == 0 && all.st_eta == 0.0);
    CHECK(nornsctl_send_command(NORNSCTL_CMD_SHUTDOWN, NULL) == NORNS_SUCCESS);
    return 0;
}
