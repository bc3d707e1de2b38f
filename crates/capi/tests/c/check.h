/* CHECK(expression): ends the program with the place where it is not true. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(expression)                                                                      \
    do {                                                                                       \
        if (!(expression)) {                                                                   \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #expression, norns_error_detail()); \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

#endif
