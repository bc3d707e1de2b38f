/* What needs no stager, and what the library says when there is none. */
#include <errno.h>
#include <norns.h>
#include <nornsctl.h>
#include <pthread.h>
#include <string.h>

#include "check.h"

static void descriptors(void) {
    char buffer[8];
    norns_resource_t memory = NORNS_MEMORY_REGION(buffer, sizeof buffer);
    CHECK(memory.r_flags == NORNS_PROCESS_MEMORY);
    CHECK(memory.r_buffer.b_addr == buffer && memory.r_buffer.b_size == sizeof buffer);
    norns_resource_t local = NORNS_LOCAL_PATH("a://", "p");
    CHECK(local.r_flags == (NORNS_POSIX_PATH | R_LOCAL) && !local.r_posix_path.p_host);
    CHECK(!strcmp(local.r_posix_path.p_nsid, "a://") && !strcmp(local.r_posix_path.p_path, "p"));
    norns_resource_t remote = NORNS_REMOTE_PATH("a://", "n1:42000", "p");
    CHECK(remote.r_flags == (NORNS_POSIX_PATH | R_REMOTE) && !strcmp(remote.r_posix_path.p_host, "n1:42000"));
    norns_resource_t shared = NORNS_SHARED_PATH("a://", "p");
    CHECK(shared.r_flags == (NORNS_POSIX_PATH | R_SHARED) && !shared.r_posix_path.p_host);
    norns_resource_t bare = NORNS_POSIX_PATH("a://", "p");
    CHECK(bare.r_flags == local.r_flags);

    norns_resource_t made;
    norns_resource_init(&made, NORNS_PROCESS_MEMORY, buffer, sizeof buffer);
    CHECK(made.r_flags == NORNS_PROCESS_MEMORY && made.r_buffer.b_size == sizeof buffer);
    nornsctl_resource_init(&made, NORNS_POSIX_PATH | R_REMOTE, "a://", "n1:42000", "p");
    CHECK(made.r_flags == remote.r_flags && !strcmp(made.r_posix_path.p_path, "p"));
    norns_resource_init(&made, NORNS_POSIX_PATH | R_LOCAL, "a://", "p");
    CHECK(!made.r_posix_path.p_host && !strcmp(made.r_posix_path.p_path, "p"));
}

static void tasks(void) {
    norns_resource_t from = NORNS_LOCAL_PATH("a://", "in"), to = NORNS_LOCAL_PATH("b://", "out");
    norns_iotask_t task;
    memset(&task, 0xff, sizeof task);
    norns_iotask_init(&task, NORNS_IOTASK_COPY, &from, &to);
    CHECK(task.t_id == 0 && task.t_op == NORNS_IOTASK_COPY && task.__t_status.st_status == 0);
    CHECK(!strcmp(task.t_dst.r_posix_path.p_path, "out"));
    nornsctl_iotask_init(&task, NORNS_IOTASK_REMOVE, &from, NULL);
    CHECK(task.t_dst.r_flags == NORNS_NULL_RESOURCE);
    norns_iotask_init(&task, NORNS_IOTASK_COPY, NULL, &to);
    CHECK(task.t_op == 0 && task.t_src.r_flags == 0 && task.t_dst.r_flags == 0);
    norns_iotask_init(NULL, NORNS_IOTASK_COPY, &from, &to);

    norns_iotask_t value = NORNS_IOTASK(NORNS_IOTASK_MOVE, from, to);
    CHECK(value.t_op == NORNS_IOTASK_MOVE && !strcmp(value.t_dst.r_posix_path.p_nsid, "b://"));
    value = NORNSCTL_IOTASK(NORNS_IOTASK_REMOVE, from);
    CHECK(value.t_op == NORNS_IOTASK_REMOVE && value.t_dst.r_flags == NORNS_NULL_RESOURCE);
}

static void administration(void) {
    nornsctl_backend_t backend = NORNSCTL_BACKEND(NORNS_BACKEND_POSIX_FILESYSTEM, true, "/mnt", 7);
    CHECK(backend.b_type == NORNS_BACKEND_POSIX_FILESYSTEM && backend.b_track && backend.b_capacity == 7);
    nornsctl_backend_init(&backend, NORNS_BACKEND_LUSTRE, false, "/lustre", 8);
    CHECK(!backend.b_track && !strcmp(backend.b_mount, "/lustre"));
    nornsctl_backend_init(NULL, NORNS_BACKEND_LUSTRE, false, "/lustre", 8);

    nornsctl_job_limit_t limit = NORNSCTL_JOB_LIMIT("a://", 5), none;
    CHECK(limit.l_quota == 5 && !strcmp(limit.l_nsid, "a://"));
    nornsctl_job_limit_init(&none, NULL, 5);
    CHECK(none.l_nsid == NULL && none.l_quota == 0);

    const char *hosts[] = {"n0", "n1"};
    nornsctl_job_limit_t *limits[] = {&limit};
    nornsctl_job_t job = NORNSCTL_JOB(hosts, 2, limits, 1);
    CHECK(job.j_nhosts == 2 && job.j_hosts == hosts && job.j_limits == limits);
    nornsctl_job_init(&job, hosts, 0, limits, 1);
    CHECK(!job.j_hosts && !job.j_limits && !job.j_nlimits);

    nornsctl_proc_t process;
    nornsctl_proc_init(&process, 3, 4, 5);
    CHECK(process.p_pid == 3 && process.p_uid == 4 && process.p_gid == 5);
    nornsctl_proc_init(NULL, 3, 4, 5);
}

static void words(void) {
    for (int code = -600; code <= 600; code++)
        CHECK(norns_strerror(code) && *norns_strerror(code) && norns_strerror(code) == nornsctl_strerror(code));
    CHECK(!strcmp(norns_strerror(NORNS_SUCCESS), "Success"));
    CHECK(!strcmp(norns_strerror(NORNS_ETASKSPENDING), "There are still pending tasks"));
    CHECK(!strcmp(norns_strerror(NORNS_ERRMAX), "Unknown error"));
    CHECK(strcmp(norns_strerror(NORNS_EPENDING), "Unknown error"));
}

/* Refused before anybody is asked. */
static void arguments(void) {
    char buffer[8];
    struct timespec bad = {0, 1000000000}, negative = {-1, 0};
    norns_stat_t stats;
    norns_iotask_t task = NORNS_IOTASK(NORNS_IOTASK_COPY, NORNS_LOCAL_PATH("a://", "in"), NORNS_LOCAL_PATH("b://", "out"));
    CHECK(norns_submit(NULL) == NORNS_EBADARGS && norns_wait(NULL, NULL) == NORNS_EBADARGS);
    CHECK(norns_error(NULL, &stats) == NORNS_EBADARGS && norns_cancel(NULL) == NORNS_EBADARGS);
    CHECK(norns_wait(&task, NULL) == NORNS_EBADARGS && norns_error(&task, &stats) == NORNS_EBADARGS);
    task.t_id = 1;
    CHECK(norns_submit(&task) == NORNS_EBADARGS && strstr(norns_error_detail(), "before"));
    CHECK(norns_wait(&task, &bad) == NORNS_EBADARGS && norns_wait(&task, &negative) == NORNS_EBADARGS);
    CHECK(norns_error(&task, NULL) == NORNS_EBADARGS);

    norns_resource_t wrong[] = {
        NORNS_MEMORY_REGION(buffer, 0), NORNS_MEMORY_REGION(NULL, 8),           NORNS_LOCAL_PATH(NULL, "x"),
        NORNS_LOCAL_PATH("", "x"),      NORNS_LOCAL_PATH("a://", NULL),         NORNS_REMOTE_PATH("a://", NULL, "x"),
        NORNS_LOCAL_PATH("\xff", "x"),  {.r_flags = NORNS_POSIX_PATH | 0x4000},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        norns_iotask_t from = NORNS_IOTASK(NORNS_IOTASK_COPY, wrong[i], NORNS_LOCAL_PATH("b://", "out"));
        norns_iotask_t to = NORNS_IOTASK(NORNS_IOTASK_COPY, NORNS_LOCAL_PATH("b://", "in"), wrong[i]);
        CHECK(norns_submit(&from) == NORNS_EBADARGS && norns_submit(&to) == NORNS_EBADARGS && !to.t_id);
    }
    norns_iotask_t directory = NORNS_IOTASK(NORNS_IOTASK_COPY, NORNS_MEMORY_REGION(buffer, 8), NORNS_LOCAL_PATH("a://", "d/"));
    CHECK(norns_submit(&directory) == NORNS_EBADARGS);
    norns_iotask_t unknown = NORNS_IOTASK((norns_op_t)9, NORNS_LOCAL_PATH("a://", "in"), NORNS_LOCAL_PATH("b://", "out"));
    CHECK(norns_submit(&unknown) == NORNS_EBADARGS);

    nornsctl_backend_t echofs = NORNSCTL_BACKEND(NORNS_BACKEND_ECHOFS, false, "/mnt", 1);
    CHECK(nornsctl_register_namespace("e://", &echofs) == NORNS_ENOTSUPPORTED);
    nornsctl_backend_t empty = NORNSCTL_BACKEND(NORNS_BACKEND_POSIX_FILESYSTEM, false, "/mnt", 0);
    CHECK(nornsctl_register_namespace("e://", &empty) == NORNS_EBADARGS);
    CHECK(nornsctl_register_dataspace("e://", NULL) == NORNS_EBADARGS && nornsctl_unregister_namespace(NULL) == NORNS_EBADARGS);
    CHECK(nornsctl_register_job(1, NULL) == NORNS_EBADARGS && nornsctl_status(NULL) == NORNS_EBADARGS);
    CHECK(nornsctl_send_command(NORNSCTL_CMD_PING, buffer) == NORNS_EBADARGS);
    CHECK(nornsctl_send_command((nornsctl_command_t)1, NULL) == NORNS_EBADARGS);
    CHECK(nornsctl_add_proc(1, NULL) == NORNS_EBADARGS && norns_get_dataspace_info("a://", NULL) == NORNS_EBADARGS);
}

/* The published library ends the process here. */
static void *unreachable(void *unused) {
    norns_iotask_t task = NORNS_IOTASK(NORNS_IOTASK_COPY, NORNS_LOCAL_PATH("a://", "in"), NORNS_LOCAL_PATH("b://", "out"));
    nornsctl_stat_t stats;
    errno = 4321;
    CHECK(norns_submit(&task) == NORNS_ECONNFAILED && task.t_id == 0);
    CHECK(nornsctl_status(&stats) == NORNS_ECONNFAILED);
    CHECK(*norns_error_detail());
    CHECK(errno == 4321);
    return unused;
}

int main(void) {
    CHECK(*norns_error_detail() == '\0');
    descriptors();
    tasks();
    administration();
    words();
    arguments();
    unreachable(NULL);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, unreachable, NULL) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    return 0;
}
