/* The interface for applications.
 *
 * Every function may be called from any thread. The first call connects to the node's stager at the socket that
 * TIDEPOOL_STAGER_SOCKET names, or the file of NORNS_CONFIG_FILE under global_socket, or at the usual place. Pointers must be NULL or
 * valid for the call. Functions return NORNS_SUCCESS or a negative code (norns_error.h) and leave errno alone. */
#ifndef TIDEPOOL_NORNS_NORNS_H
#define TIDEPOOL_NORNS_NORNS_H

#include <norns/norns_error.h>
#include <norns/norns_resources.h>
#include <norns/norns_types.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Fills a descriptor, which can be submitted once. dst is NULL for a removal. A NULL src leaves it all zero. */
void norns_iotask_init(norns_iotask_t *task, norns_op_t op, norns_resource_t *src, norns_resource_t *dst);

/* The same as a value: NORNS_IOTASK(op, src, dst), without dst for a removal. */
static inline norns_iotask_t NORNS_IOTASK(norns_op_t op, norns_resource_t src, ...) {
    va_list more;
    norns_iotask_t task;
    va_start(more, src);
    task = norns_iotask_value__(op, src, more);
    va_end(more);
    return task;
}

/* Fills a resource: (addr, size) for NORNS_PROCESS_MEMORY, (nsid, host, path) for NORNS_POSIX_PATH | R_REMOTE,
 * (nsid, path) for other paths. */
static inline void norns_resource_init(norns_resource_t *resource, norns_flags_t type, ...) {
    va_list more;
    va_start(more, type);
    *resource = norns_resource_value__(type, more);
    va_end(more);
}

/* Hands the task over and sets its t_id. It runs when its turn comes; the strings are not needed any more.
 * NORNS_EBADARGS (also: submitted before), NORNS_ENOSUCHNAMESPACE, NORNS_ENOTSUPPORTED, NORNS_EACCEPTPAUSED, NORNS_EPERM,
 * NORNS_ETOOMANYTASKS; NORNS_ERPCRECVFAILED when the stager went away and may have the task. */
norns_error_t norns_submit(norns_iotask_t *task);

/* Waits until the task has ended; with a timeout, NORNS_ETIMEOUT when it has not by then. NULL: for ever. That it has
 * ended does not mean that it worked: see norns_error. */
norns_error_t norns_wait(norns_iotask_t *task, const struct timespec *timeout);

/* Ours: norns_submit and norns_wait as one; a task that ends within a moment costs one exchange with the stager instead of two. With
 * NORNS_SUCCESS the task has ended, which does not mean that it worked: see norns_error. Other codes are those of the two. The task is
 * with the stager if t_id is set, so after NORNS_ETIMEOUT always: wait again or cancel it. A timeout of zero submits and looks. */
norns_error_t norns_submit_wait(norns_iotask_t *task, const struct timespec *timeout);

/* How the task is, as often as wanted, from any process of its user that knows its t_id. After a wait
 * that saw the end this is what the wait saw. */
norns_error_t norns_error(norns_iotask_t *task, norns_stat_t *stats);

/* Ends a task that has not ended; it is then NORNS_EFINISHEDWERROR with NORNS_ECANCELED. No file keeps a final
 * name with half of its content. NORNS_ETASKSTATE when it has ended. */
norns_error_t norns_cancel(norns_iotask_t *task);

/* Ours: what the calling process may use of a dataspace (Table I of the paper). NORNS_ENOSUCHNAMESPACE when it may not. */
norns_error_t norns_get_dataspace_info(const char *nsid, norns_dataspace_info_t *info);

/* Words for a code, never NULL. They must not be changed. */
char *norns_strerror(norns_error_t errnum);

#ifdef __cplusplus
}
#endif

#endif
