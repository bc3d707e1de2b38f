/* Memory of this process as source and destination, here and (argument) at another stager. */
#include <errno.h>
#include <norns.h>
#include <sys/mman.h>

#include "files.h"

static norns_stat_t copy(norns_resource_t from, norns_resource_t to) {
    norns_stat_t stats;
    norns_iotask_t task = NORNS_IOTASK(NORNS_IOTASK_COPY, from, to);
    CHECK(norns_submit(&task) == NORNS_SUCCESS);
    CHECK(norns_wait(&task, NULL) == NORNS_SUCCESS && norns_error(&task, &stats) == NORNS_SUCCESS);
    return stats;
}

static void here(size_t size) {
    char *bytes = pattern(size), *back = calloc(1, size + 1);
    norns_stat_t stats = copy(NORNS_MEMORY_REGION(bytes, size), NORNS_LOCAL_PATH("b://", "dir/out"));
    CHECK(stats.st_status == NORNS_EFINISHED && stats.st_total == size && stats.st_pending == 0);
    CHECK(holds(at("B", "dir/out"), bytes, size));
    stats = copy(NORNS_LOCAL_PATH("b://", "dir/out"), NORNS_MEMORY_REGION(back, size));
    CHECK(stats.st_status == NORNS_EFINISHED && !memcmp(back, bytes, size) && back[size] == 0);
    free(bytes);
    free(back);
}

static void there_and_back(const char *address, size_t size) {
    char *bytes = pattern(size), *back = calloc(1, size + 1);
    norns_stat_t stats = copy(NORNS_MEMORY_REGION(bytes, size), NORNS_REMOTE_PATH("far://", address, "dir/out"));
    CHECK(stats.st_status == NORNS_EFINISHED && holds(at("FAR", "dir/out"), bytes, size));
    stats = copy(NORNS_REMOTE_PATH("far://", address, "dir/out"), NORNS_MEMORY_REGION(back, size));
    CHECK(stats.st_status == NORNS_EFINISHED && !memcmp(back, bytes, size) && back[size] == 0);
    free(bytes);
    free(back);
}

/* A move from memory is a copy; into memory there is none. */
static void moved(size_t size) {
    char *bytes = pattern(size);
    norns_iotask_t out = NORNS_IOTASK(NORNS_IOTASK_MOVE, NORNS_MEMORY_REGION(bytes, size), NORNS_LOCAL_PATH("b://", "moved"));
    CHECK(norns_submit(&out) == NORNS_SUCCESS && norns_wait(&out, NULL) == NORNS_SUCCESS);
    CHECK(holds(at("B", "moved"), bytes, size));
    norns_iotask_t in = NORNS_IOTASK(NORNS_IOTASK_MOVE, NORNS_LOCAL_PATH("b://", "moved"), NORNS_MEMORY_REGION(bytes, size));
    CHECK(norns_submit(&in) == NORNS_ENOTSUPPORTED && there(at("B", "moved")));
    free(bytes);
}

/* Half of it cannot be read: an error, and no file. */
static void not_there(void) {
    char *pages = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && munmap(pages + (4 << 20), 4 << 20) == 0);
    norns_stat_t stats = copy(NORNS_MEMORY_REGION(pages, 8 << 20), NORNS_LOCAL_PATH("b://", "half"));
    CHECK(stats.st_status == NORNS_EFINISHEDWERROR && stats.st_sys_errno == EFAULT && !there(at("B", "half")));
}

int main(int argc, char **argv) {
    here(1);
    here(4096);
    here((5 << 20) + 321);
    not_there();
    moved(4096);
    if (argc > 1) {
        there_and_back(argv[1], 1000);
        there_and_back(argv[1], (5 << 20) + 321);
    }
    return 0;
}
