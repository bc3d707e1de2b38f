/* Result codes and states of tasks. */
#ifndef TIDEPOOL_NORNS_ERROR_H
#define TIDEPOOL_NORNS_ERROR_H

#define NORNS_SUCCESS 0
#define NORNS_ESNAFU (-1)
#define NORNS_EBADARGS (-2)
#define NORNS_EBADREQUEST (-3)
#define NORNS_ENOMEM (-4)
#define NORNS_ETIMEOUT (-5)

/* Communication. After NORNS_ERPCRECVFAILED the stager may have done what was asked. */
#define NORNS_ECONNFAILED (-6)
#define NORNS_ERPCSENDFAILED (-7)
#define NORNS_ERPCRECVFAILED (-8)
#define NORNS_EACCEPTPAUSED (-9)

#define NORNS_EJOBEXISTS (-10)
#define NORNS_ENOSUCHJOB (-11)
#define NORNS_EJOBBUSY (-12) /* ours: the job has unfinished tasks */

#define NORNS_EPROCESSEXISTS (-20)
#define NORNS_ENOSUCHPROCESS (-21)

#define NORNS_ENAMESPACEEXISTS (-30)
#define NORNS_ENOSUCHNAMESPACE (-31)
#define NORNS_ENAMESPACENOTEMPTY (-32)
#define NORNS_ENAMESPACEBUSY (-33) /* ours: unfinished tasks use the namespace */

#define NORNS_ETASKEXISTS (-40)
#define NORNS_ENOSUCHTASK (-41)
#define NORNS_ETOOMANYTASKS (-42)
#define NORNS_ETASKSPENDING (-43)
#define NORNS_ECANCELED (-44)  /* ours: how a cancelled task ended */
#define NORNS_ETASKSTATE (-45) /* ours: not possible in the task's state */

#define NORNS_EPERM (-50) /* ours: not permitted */

/* States of a task, in st_status. */
#define NORNS_EUNDEFINED (-100)
#define NORNS_EPENDING (-101)
#define NORNS_EINPROGRESS (-102)
#define NORNS_EFINISHED (-103)
#define NORNS_EFINISHEDWERROR (-104)
/* The same state under the name that the paper's listing 2 has. */
#define NORNS_ETASKERROR NORNS_EFINISHEDWERROR

#define NORNS_ERESOURCEEXISTS (-110)
#define NORNS_ENOSUCHRESOURCE (-111)

#define NORNS_ENOTSUPPORTED (-200)
#define NORNS_ESYSTEMERROR (-201) /* the reason is in st_sys_errno */

#define NORNS_ERRMAX 512

#ifdef __cplusplus
extern "C" {
#endif

/* Ours: what went wrong in the calling thread's last call that failed, with what to do about it. Valid until
 * that thread's next call; never NULL. */
const char *norns_error_detail(void);

#ifdef __cplusplus
}
#endif

#endif
