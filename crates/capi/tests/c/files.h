/* Files of the tests: A and B are the directories of the dataspaces a:// and b://. */
#ifndef FILES_H
#define FILES_H

#include <dirent.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

/* "$SPACE/name"; up to four of them live at once. */
static const char *at(const char *space, const char *name) {
    static __thread char paths[4][4096];
    static __thread int turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", getenv(space), name);
    return path;
}

static inline void put(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "w");
    CHECK(file && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
}

/* True when the file is there and holds exactly this. */
static inline int holds(const char *path, const void *bytes, size_t size) {
    struct stat stat_of;
    if (stat(path, &stat_of) != 0 || (size_t)stat_of.st_size != size)
        return 0;
    char *found = malloc(size + 1);
    FILE *file = fopen(path, "r");
    CHECK(found && file && fread(found, 1, size, file) == size && fclose(file) == 0);
    int same = memcmp(found, bytes, size) == 0;
    free(found);
    return same;
}

static inline int there(const char *path) {
    struct stat stat_of;
    return lstat(path, &stat_of) == 0;
}

/* size bytes that differ from each other. */
static inline char *pattern(size_t size) {
    char *bytes = malloc(size);
    CHECK(bytes);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (char)(i * 2654435761u >> 13);
    return bytes;
}

#endif
