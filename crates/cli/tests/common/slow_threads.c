/* Has every third thread begin late, in an order that has no pattern, so that what was asked for first is not always done
 * first: a busy controller. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define PAUSE_US 40000

struct late {
	void *(*begin)(void *);
	void *with;
	int pause_us;
};

static atomic_uint last = 1;

__attribute__((constructor)) static void only_here(void)
{
	unsetenv("LD_PRELOAD");
}

static unsigned noise(void)
{
	unsigned next = atomic_load(&last) * 1664525u + 1013904223u;

	atomic_store(&last, next);
	return next >> 16;
}

static void *begin_late(void *given)
{
	struct late late = *(struct late *) given;

	free(given);
	usleep(late.pause_us);
	return late.begin(late.with);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*begin)(void *), void *with)
{
	int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
		(int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *)) dlsym(RTLD_NEXT, "pthread_create");
	struct late *late = malloc(sizeof(*late));

	if (late == NULL)
		return real(thread, attr, begin, with);
	late->begin = begin;
	late->with = with;
	late->pause_us = noise() % 3 == 0 ? PAUSE_US : 0;
	return real(thread, attr, begin_late, late);
}
