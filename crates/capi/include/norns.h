/* The interface for applications: tasks that move data between dataspaces.
 * Link with -lnorns. */
#ifndef TIDEPOOL_NORNS_H
#define TIDEPOOL_NORNS_H

#include <norns/norns.h>

#endif
