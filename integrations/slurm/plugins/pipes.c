/*
 * For burst_buffer.lua: lets go of the pipes of other hooks.
 *
 * Before 24.11, slurmscriptd makes a pipe and forks for each hook, several at a time in threads. A hook that is forked
 * between another one's pipe() and fork() inherits that pipe, and Slurm takes the other hook for unfinished until this
 * one has ended (docs/decisions/0023-slurm.md, "What slurmscriptd hands on").
 *
 * Lua calls the function by package.loadlib(); it takes and returns no values of Lua's, so it needs none of its headers.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* More are left alone; a hook has some ten. */
#define PIPES_MAX 4096

struct pipe_end {
	ino_t inode;
	int fd;
	int mode;
};

/* The ends of pipes that this process has, without its standard ones; how many. */
static int ends_of_pipes(struct pipe_end *ends)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	int count = 0;

	if (dir == NULL)
		return 0;
	while ((entry = readdir(dir)) != NULL && count < PIPES_MAX) {
		struct stat facts;
		int fd = atoi(entry->d_name);

		if (fd <= STDERR_FILENO || fstat(fd, &facts) != 0 || !S_ISFIFO(facts.st_mode))
			continue;
		ends[count].inode = facts.st_ino;
		ends[count].fd = fd;
		ends[count].mode = fcntl(fd, F_GETFL) & O_ACCMODE;
		count++;
	}
	closedir(dir);
	return count;
}

/* A hook is what fork() has left of slurmscriptd: one thread. In slurmctld itself pipes have their use. */
static int is_a_hook(void)
{
	struct stat tasks;

	return stat("/proc/self/task", &tasks) == 0 && tasks.st_nlink == 3;
}

/*
 * Closes pipes of which this process has both ends. Of its own pipe slurmscriptd has closed the reading end, and Lua's
 * popen keeps one end only.
 */
int tidepool_let_go(void *lua)
{
	static struct pipe_end ends[PIPES_MAX];
	int count, one, other;

	(void) lua;
	if (!is_a_hook())
		return 0;
	count = ends_of_pipes(ends);
	for (one = 0; one < count; one++) {
		for (other = 0; ends[one].mode == O_WRONLY && other < count; other++) {
			if (ends[other].mode == O_RDONLY && ends[other].inode == ends[one].inode) {
				close(ends[one].fd);
				break;
			}
		}
	}
	return 0;
}
