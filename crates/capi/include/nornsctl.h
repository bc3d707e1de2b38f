/* The interface for batch systems and administrators: dataspaces, jobs, processes and tasks on their behalf.
 * Link with -lnornsctl. */
#ifndef TIDEPOOL_NORNSCTL_H
#define TIDEPOOL_NORNSCTL_H

#include <norns/nornsctl.h>

#endif
