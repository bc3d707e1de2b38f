/* The interface for batch systems and administrators. It uses the control socket, which only its owner and
 * group can open: TIDEPOOL_STAGER_CONTROL, or control_socket of the file in NORNS_CONFIG_FILE, or the usual place. What
 * norns/norns.h says of threads, pointers, codes and errno goes for these functions as well. */
#ifndef TIDEPOOL_NORNS_NORNSCTL_H
#define TIDEPOOL_NORNS_NORNSCTL_H

#include <norns/norns_error.h>
#include <norns/norns_resources.h>
#include <norns/norns_types.h>
#include <norns/nornsctl_types.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Daemon. */

/* args must be NULL. Paused, the stager refuses tasks with NORNS_EACCEPTPAUSED. Shutting down is refused with
 * NORNS_ETASKSPENDING while tasks have not ended and NORNS_ENAMESPACENOTEMPTY while a tracked namespace holds anything. */
norns_error_t nornsctl_send_command(nornsctl_command_t command, void *args);

/* Counts and remaining time of all tasks together. */
norns_error_t nornsctl_status(nornsctl_stat_t *stats);

/* Dataspaces. */

nornsctl_backend_t NORNSCTL_BACKEND(nornsctl_backend_flags_t flags, bool track, const char *mount, uint32_t capacity);
void nornsctl_backend_init(nornsctl_backend_t *backend, nornsctl_backend_flags_t flags, bool track, const char *mount,
                           uint32_t capacity);

/* NORNS_EBADARGS (also: no capacity, no such directory), NORNS_ENAMESPACEEXISTS. */
norns_error_t nornsctl_register_namespace(const char *nsid, nornsctl_backend_t *backend);
norns_error_t nornsctl_update_namespace(const char *nsid, nornsctl_backend_t *backend);
norns_error_t nornsctl_unregister_namespace(const char *nsid);

/* The same under the names of the paper. */
norns_error_t nornsctl_register_dataspace(const char *dsid, nornsctl_backend_t *backend);
norns_error_t nornsctl_update_dataspace(const char *dsid, nornsctl_backend_t *backend);
norns_error_t nornsctl_unregister_dataspace(const char *dsid);

/* Jobs. */

nornsctl_job_limit_t NORNSCTL_JOB_LIMIT(const char *nsid, uint32_t quota);
void nornsctl_job_limit_init(nornsctl_job_limit_t *limit, const char *nsid, uint32_t quota);

/* All zero unless there are hosts and limits. */
nornsctl_job_t NORNSCTL_JOB(const char **hosts, size_t nhosts, nornsctl_job_limit_t **limits, size_t nlimits);
void nornsctl_job_init(nornsctl_job_t *job, const char **hosts, size_t nhosts, nornsctl_job_limit_t **limits,
                       size_t nlimits);

norns_error_t nornsctl_register_job(uint32_t jobid, nornsctl_job_t *job);
norns_error_t nornsctl_update_job(uint32_t jobid, nornsctl_job_t *job);

/* NORNS_EJOBBUSY while it has unfinished tasks. What tracked namespaces still hold afterwards: nornsctl(1). */
norns_error_t nornsctl_unregister_job(uint32_t jobid);

/* Processes of jobs: they and their children may submit tasks within the job's limits. */

norns_error_t nornsctl_add_process(uint32_t jobid, uid_t uid, gid_t gid, pid_t pid);
norns_error_t nornsctl_remove_process(uint32_t jobid, uid_t uid, gid_t gid, pid_t pid);

/* Ours: the same with a descriptor, as in Table I of the paper. */
void nornsctl_proc_init(nornsctl_proc_t *process, pid_t pid, uid_t uid, gid_t gid);
norns_error_t nornsctl_add_proc(uint32_t jobid, const nornsctl_proc_t *process);
norns_error_t nornsctl_remove_proc(uint32_t jobid, const nornsctl_proc_t *process);

/* Tasks: as the norns_ functions, with the rights of the control socket. */

void nornsctl_iotask_init(norns_iotask_t *task, norns_op_t op, norns_resource_t *src, norns_resource_t *dst);

static inline norns_iotask_t NORNSCTL_IOTASK(norns_op_t op, norns_resource_t src, ...) {
    va_list more;
    norns_iotask_t task;
    va_start(more, src);
    task = norns_iotask_value__(op, src, more);
    va_end(more);
    return task;
}

static inline void nornsctl_resource_init(norns_resource_t *resource, norns_flags_t type, ...) {
    va_list more;
    va_start(more, type);
    *resource = norns_resource_value__(type, more);
    va_end(more);
}

norns_error_t nornsctl_submit(norns_iotask_t *task);
norns_error_t nornsctl_wait(norns_iotask_t *task, const struct timespec *timeout);
norns_error_t nornsctl_submit_wait(norns_iotask_t *task, const struct timespec *timeout); /* Ours. */
norns_error_t nornsctl_error(norns_iotask_t *task, norns_stat_t *stats);
norns_error_t nornsctl_cancel(norns_iotask_t *task);

char *nornsctl_strerror(norns_error_t errnum);

#ifdef __cplusplus
}
#endif

#endif
