/* Has fork() take long, so that what another thread does meanwhile, a process inherits: a busy controller. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#define PAUSE_US 30000

__attribute__((constructor)) static void only_here(void)
{
	unsetenv("LD_PRELOAD");
}

pid_t fork(void)
{
	pid_t (*real)(void) = (pid_t (*)(void)) dlsym(RTLD_NEXT, "fork");
	pid_t child;

	usleep(PAUSE_US);
	child = real();
	if (child != 0)
		usleep(PAUSE_US);
	return child;
}
