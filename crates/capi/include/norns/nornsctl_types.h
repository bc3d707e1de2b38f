/* Types of the interface for administration. */
#ifndef TIDEPOOL_NORNSCTL_TYPES_H
#define TIDEPOOL_NORNSCTL_TYPES_H

#include <norns/norns_types.h>

typedef enum {
    NORNSCTL_CMD_PING = 1000,
    NORNSCTL_CMD_PAUSE_LISTEN = 1001,
    NORNSCTL_CMD_RESUME_LISTEN = 1002,
    NORNSCTL_CMD_SHUTDOWN = 1003
} nornsctl_command_t;

typedef struct {
    int b_type;          /* NORNS_BACKEND_... */
    bool b_track;        /* tell what is left in it */
    const char *b_mount; /* a directory */
    uint32_t b_capacity; /* MiB that tasks may put there; not 0 */
} nornsctl_backend_t;

typedef struct {
    const char *l_nsid;
    uint32_t l_quota; /* MiB that the job may put there; 0 for no limit */
} nornsctl_job_limit_t;

typedef struct {
    const char **j_hosts;
    size_t j_nhosts;
    nornsctl_job_limit_t **j_limits; /* the namespaces the job may use */
    size_t j_nlimits;
} nornsctl_job_t;

/* Ours: Table I of the paper has proc_init. */
typedef struct {
    pid_t p_pid;
    uid_t p_uid;
    gid_t p_gid;
} nornsctl_proc_t;

typedef struct {
    size_t st_running_tasks;
    size_t st_pending_tasks;
    double st_eta; /* seconds until nothing is left; NAN when it cannot be told */
} nornsctl_stat_t;

#endif
