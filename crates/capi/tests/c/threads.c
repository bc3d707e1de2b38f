/* One connection, many threads: small tasks go through while others wait for long ones. */
#include <norns.h>
#include <pthread.h>

#include "files.h"

#define THREADS 8
#define ROUNDS 50

static void *small_tasks(void *number) {
    char name[32];
    snprintf(name, sizeof name, "t%ld", (long)number);
    char *bytes = pattern(1000 + (size_t)(long)number);
    put(at("A", name), bytes, 1000 + (size_t)(long)number);
    for (int round = 0; round < ROUNDS; round++) {
        char out[64];
        snprintf(out, sizeof out, "t%ld.%d", (long)number, round);
        norns_iotask_t task = NORNS_IOTASK(NORNS_IOTASK_COPY, NORNS_LOCAL_PATH("a://", name), NORNS_LOCAL_PATH("b://", out));
        norns_stat_t stats;
        CHECK(norns_submit(&task) == NORNS_SUCCESS && norns_wait(&task, NULL) == NORNS_SUCCESS);
        CHECK(norns_error(&task, &stats) == NORNS_SUCCESS && stats.st_status == NORNS_EFINISHED);
        CHECK(holds(at("B", out), bytes, 1000 + (size_t)(long)number));
    }
    free(bytes);
    return NULL;
}

static norns_iotask_t long_task;

static void *long_wait(void *unused) {
    CHECK(norns_wait(&long_task, NULL) == NORNS_SUCCESS);
    return unused;
}

int main(void) {
    put(at("A", "large"), "", 0);
    CHECK(truncate(at("A", "large"), 1 << 30) == 0);
    char one = 1;
    /* Not a hole: it has to be copied. */
    FILE *large = fopen(at("A", "large"), "r+");
    for (long offset = 0; offset < 16 << 20; offset += 4096)
        CHECK(fseek(large, offset, SEEK_SET) == 0 && fwrite(&one, 1, 1, large) == 1);
    CHECK(fclose(large) == 0);
    long_task = NORNS_IOTASK(NORNS_IOTASK_COPY, NORNS_LOCAL_PATH("a://", "large"), NORNS_LOCAL_PATH("slow://", "large"));
    CHECK(norns_submit(&long_task) == NORNS_SUCCESS);

    pthread_t waiting, threads[THREADS];
    CHECK(pthread_create(&waiting, NULL, long_wait, NULL) == 0);
    for (long i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, small_tasks, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    norns_stat_t stats;
    CHECK(norns_error(&long_task, &stats) == NORNS_SUCCESS && stats.st_status == NORNS_EINPROGRESS);
    norns_iotask_t copy = long_task;
    CHECK(norns_cancel(&copy) == NORNS_SUCCESS);
    CHECK(pthread_join(waiting, NULL) == 0);
    CHECK(norns_error(&long_task, &stats) == NORNS_SUCCESS && stats.st_task_error == NORNS_ECANCELED);
    return 0;
}
