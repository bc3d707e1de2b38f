/* Resources and tasks as values, of both interfaces. */
#ifndef TIDEPOOL_NORNS_RESOURCES_H
#define TIDEPOOL_NORNS_RESOURCES_H

#include <norns/norns_types.h>
#include <stdarg.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* size bytes at addr of the calling process. The task may be submitted from any thread; the memory must
 * stay as it is until the task has ended. */
norns_resource_t NORNS_MEMORY_REGION(void *addr, size_t size);

/* A path on this node. */
norns_resource_t NORNS_LOCAL_PATH(const char *nsid, const char *path);

/* A path at another node's stager, which listens at host: "address:port". */
norns_resource_t NORNS_REMOTE_PATH(const char *nsid, const char *host, const char *path);

/* A path on storage that all nodes see. */
norns_resource_t NORNS_SHARED_PATH(const char *nsid, const char *path);

/* As in the paper's listing 2: a path on this node. Without parentheses it is the number. */
#define NORNS_POSIX_PATH(nsid, path) NORNS_LOCAL_PATH((nsid), (path))

/* The two below take a varying number of arguments, which only C can: they are part of the caller's program. */

/* NORNS_IOTASK(op, src, dst), or NORNS_IOTASK(NORNS_IOTASK_REMOVE, src). */
static inline norns_iotask_t norns_iotask_value__(norns_op_t op, norns_resource_t src, va_list more) {
    norns_iotask_t task;
    memset(&task, 0, sizeof task);
    task.t_op = op;
    task.t_src = src;
    if (op == NORNS_IOTASK_REMOVE)
        task.t_dst.r_flags = NORNS_NULL_RESOURCE;
    else
        task.t_dst = va_arg(more, norns_resource_t);
    return task;
}

/* (void *addr, size_t size) for NORNS_PROCESS_MEMORY, (nsid, host, path) for NORNS_POSIX_PATH | R_REMOTE,
 * (nsid, path) for other paths, nothing for NORNS_NULL_RESOURCE. */
static inline norns_resource_t norns_resource_value__(norns_flags_t type, va_list more) {
    norns_resource_t resource;
    memset(&resource, 0, sizeof resource);
    resource.r_flags = type;
    if (type == (norns_flags_t)NORNS_PROCESS_MEMORY) {
        resource.r_buffer.b_addr = va_arg(more, void *);
        resource.r_buffer.b_size = va_arg(more, size_t);
    } else if (type != (norns_flags_t)NORNS_NULL_RESOURCE) {
        resource.r_posix_path.p_nsid = va_arg(more, const char *);
        if (type & R_REMOTE)
            resource.r_posix_path.p_host = va_arg(more, const char *);
        resource.r_posix_path.p_path = va_arg(more, const char *);
    }
    return resource;
}

#ifdef __cplusplus
}
#endif

#endif
