/* Types of both interfaces. Strings are borrowed: they must live until the task is submitted, not longer. */
#ifndef TIDEPOOL_NORNS_TYPES_H
#define TIDEPOOL_NORNS_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef uint32_t norns_tid_t;
typedef uint32_t norns_flags_t;
typedef int32_t norns_status_t;
typedef int32_t norns_error_t;

/* What a resource is (r_flags). A path is NORNS_POSIX_PATH | R_LOCAL and so on. */
enum {
    NORNS_PROCESS_MEMORY = 0x0100000, /* memory of the calling process */
    NORNS_POSIX_PATH = 0x0200000,     /* a path in a namespace */
    NORNS_NULL_RESOURCE = 0x1000000   /* none: the destination of a removal */
};
enum {
    R_LOCAL = 0x10,  /* on this node */
    R_REMOTE = 0x20, /* at another node's stager */
    R_SHARED = 0x40  /* on storage that all nodes see */
};

/* What a task does. A move removes the source after the copy has been verified. */
typedef enum {
    NORNS_IOTASK_COPY = 1,
    NORNS_IOTASK_MOVE = 2,
    NORNS_IOTASK_REMOVE = 3
} norns_op_t;

typedef struct {
    void *b_addr;
    size_t b_size; /* bytes */
} norns_memory_region_t;

typedef struct {
    const char *p_nsid; /* "nvme0://" */
    const char *p_host; /* "address:port" of the other stager; NULL unless remote */
    const char *p_path; /* from the namespace's root, with or without a slash; ".." leads not above it */
} norns_posix_path_t;

typedef struct {
    norns_flags_t r_flags;
    union {
        norns_memory_region_t r_buffer;
        norns_posix_path_t r_posix_path;
    };
} norns_resource_t;

typedef struct {
    norns_status_t st_status;    /* NORNS_EPENDING ... NORNS_EFINISHEDWERROR */
    norns_error_t st_task_error; /* why it failed; NORNS_SUCCESS otherwise */
    int st_sys_errno;            /* with NORNS_ESYSTEMERROR */
    size_t st_pending;           /* bytes still to be moved, as far as known */
    size_t st_total;             /* bytes in all, as far as known */
} norns_stat_t;

typedef struct {
    norns_tid_t t_id; /* 0 until the task is submitted */
    norns_op_t t_op;
    norns_resource_t t_src;
    norns_resource_t t_dst;
    norns_stat_t __t_status; /* private */
} norns_iotask_t;

/* Ours: what the calling process may use of a dataspace (Table I of the paper). */
#define NORNS_MOUNT_MAX 4096
typedef struct {
    int di_type; /* NORNS_BACKEND_... */
    bool di_track;
    uint64_t di_capacity; /* bytes that tasks may put there in all; 0 for no limit */
    uint64_t di_quota;    /* bytes that the caller's job may put there; 0 for no limit */
    uint64_t di_used;     /* bytes that its tasks have put there */
    char di_mount[NORNS_MOUNT_MAX];
} norns_dataspace_info_t;

/* What a dataspace is. */
typedef enum {
    NORNS_BACKEND_NVML = 0x10000001,
    NORNS_BACKEND_LUSTRE = 0x10000002,
    NORNS_BACKEND_ECHOFS = 0x10000003, /* refused with NORNS_ENOTSUPPORTED */
    NORNS_BACKEND_POSIX_FILESYSTEM = 0x10000004
} nornsctl_backend_flags_t;

#endif
