/* Listing 2 of Miranda et al. 2019, unchanged, in a program that runs it. */
#include <norns.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fatal(const char *message) {
    fprintf(stderr, "%s\n", message);
    exit(1);
}

static int worked;
static void work_not_dependent_on_task(void) { worked = 1; }

void buffer_offloading(void* buffer, int size);

void buffer_offloading(void* buffer, int size) {
    // define and submit transfer task for buffer
    norns_iotask_t tsk = NORNS_IOTASK(
        NORNS_IOTASK_COPY,
        NORNS_MEMORY_REGION(buffer, size),
        NORNS_POSIX_PATH(
            "tmp0://", "path/to/output"));

    if(norns_submit(&tsk) != NORNS_SUCCESS) {
        fatal("task submission failed");
    }

    work_not_dependent_on_task();

    // wait for task to complete and check status
    norns_wait(&tsk, /* timeout = */ NULL);
    norns_stat_t stats;
    norns_error(&tsk, &stats);

    if(stats.st_status == NORNS_ETASKERROR) {
        fatal("task failed");
    }
}

int main(void) {
    static char buffer[100000];
    memset(buffer, 'x', sizeof buffer);
    buffer_offloading(buffer, sizeof buffer);
    return worked ? 0 : 1;
}
