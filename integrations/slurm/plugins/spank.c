/*
 * Slurm SPANK plug-in: the options of sbatch, srun and salloc for Tidepool, and what tasks of a job need of it.
 *
 *   plugstack.conf:  optional /usr/local/lib/tidepool/spank_tidepool.so tidepool=/usr/local/bin/tidepool jobs=/run/tidepool/jobs
 *
 * The options are only taken up here. Slurm puts them into the job's environment, where the job_submit hook finds, checks
 * and turns them into directives, so that there is one grammar (docs/formats/21-directives.md).
 *
 * Of a job that the node's stager knows (a file in `jobs` named by its number, docs/formats/11-stager.md) each task becomes
 * a process that may talk to the stager for the job. Where a job's pool is not mounted, each task gets the preload library. Slurm asks
 * for the variables that name a pool before the pool is there: here they are made to say where it is. Other jobs cost one access(2)
 * per task. Nothing of that fails a job that goes wrong.
 *
 * A step's working directory in a pool is another matter: a program that starts elsewhere leaves its results there. Slurm changes to it
 * with the user's effective id alone, which the kernel does not take for the user at a mount of his, and of a pool that only the preload
 * library shows it knows nothing; it then starts the task in /tmp. So srun tells where it is, and each task goes there, or fails.
 *
 * All names are static: sbatch has globals of its own, and a plug-in's would be taken for them.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/spank.h>

extern char **environ;

SPANK_PLUGIN(tidepool, 1)

#define WORDS_MAX 4096
#define PRELOAD_MAX 16384
/* Further names below /tmp for a user's pools, where somebody else has taken the first (docs/decisions/0041-shared-directories.md). */
#define PLACES_MAX 8
#define VARIABLES_MAX 256
#define NAME_MAX_BYTES 128
#define WORKDIR_WORDS_MAX 65536
#ifndef FUSE_SUPER_MAGIC
#define FUSE_SUPER_MAGIC 0x65735546
#endif

static const char *program = "/usr/local/bin/tidepool";
static const char *jobs = "/run/tidepool/jobs";

/* Refuses what would not survive the way through an environment variable; all else is the grammar's business. */
static int taken(int value, const char *words, int remote)
{
	(void)value;
	if (remote || words == NULL)
		return ESPANK_SUCCESS;
	if (strlen(words) > WORDS_MAX || strpbrk(words, "\n\r") != NULL) {
		slurm_error("tidepool: the value of an option is longer than %d bytes, or has more than one line", WORDS_MAX);
		return ESPANK_BAD_ARG;
	}
	return ESPANK_SUCCESS;
}

static struct spank_option options[] = {
	{ "tidepool", "WORDS", "a file system of the job's own nodes, as in '#TIDEPOOL pool WORDS': size=10GiB nodes=2 ...", 2, 0, taken },
	{ "workflow-start", "NAME", "start a workflow; it has the number of this job", 2, 0, taken },
	{ "workflow-prior-dependency", "JOBS", "run after these jobs of a workflow, as 12,13", 1, 0, taken },
	{ "workflow-end", NULL, "this is the last job of its workflow", 0, 0, taken },
	{ "workflow-same-nodes", NULL, "run on the nodes of the jobs that it comes after", 0, 0, taken },
	SPANK_OPTIONS_TABLE_END
};

/* `key=value` words of plugstack.conf. The arrays live as long as the plug-in. */
static void read_words(int count, char **words)
{
	for (int i = 0; i < count; i++) {
		if (strncmp(words[i], "tidepool=", 9) == 0)
			program = words[i] + 9;
		else if (strncmp(words[i], "jobs=", 5) == 0)
			jobs = words[i] + 5;
		else
			slurm_error("tidepool: plugstack.conf: '%s' is neither tidepool=PROGRAM nor jobs=DIRECTORY", words[i]);
	}
}

int slurm_spank_init(spank_t spank, int count, char **words)
{
	read_words(count, words);
	spank_context_t context = spank_context();
	if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR && context != S_CTX_REMOTE)
		return ESPANK_SUCCESS;
	for (int i = 0; options[i].name != NULL; i++) {
		spank_err_t result = spank_option_register(spank, &options[i]);
		if (result != ESPANK_SUCCESS)
			slurm_error("tidepool: option --%s: %s", options[i].name, spank_strerror(result));
	}
	return ESPANK_SUCCESS;
}

/* Where a step is to run, from srun to its tasks. */
#define WORKDIR "TIDEPOOL_STEP_WORKDIR"

/* True for variables that name a pool's directory. */
static int names_directory(const char *variable, size_t length)
{
	return length >= strlen("TIDEPOOL_DIR") && length < NAME_MAX_BYTES && strncmp(variable, "TIDEPOOL_", 9) == 0 &&
	       strncmp(variable + length - 4, "_DIR", 4) == 0;
}

/* True for a directory and what is below it. */
static int is_below(const char *path, const char *dir)
{
	size_t length = strlen(dir);
	while (length > 1 && dir[length - 1] == '/')
		length--;
	return length > 1 && strncmp(path, dir, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

/* The pool's directory that a path is in, by a program's variables; NULL for none. */
static const char *pool_of(const char *path, char **variables)
{
	for (; variables != NULL && *variables != NULL; variables++) {
		size_t length = strcspn(*variables, "=");
		if ((*variables)[length] == '=' && names_directory(*variables, length) && is_below(path, *variables + length + 1))
			return *variables + length + 1;
	}
	return NULL;
}

/*
 * The pool's directory that srun's words ask for as working directory; NULL for none. Slurm tells a plug-in nothing of its own options, and only
 * srun knows which word is the program: one that is no option and follows none, at the latest.
 */
static const char *asked_for(const char *words, size_t length)
{
	const char *said = NULL, *before = "";
	for (size_t at = strlen(words) + 1; at < length; at += strlen(words + at) + 1) {
		const char *word = words + at;
		if (strcmp(before, "-D") == 0 || strcmp(before, "--chdir") == 0)
			said = word;
		else if (strncmp(word, "--chdir=", 8) == 0)
			said = word + 8;
		else if (strcmp(word, "--") == 0 || (word[0] != '-' && before[0] != '-'))
			break;
		before = word;
	}
	return said != NULL && pool_of(said, environ) != NULL ? said : NULL;
}

/* In srun, before it starts tasks. */
int slurm_spank_local_user_init(spank_t spank, int count, char **words)
{
	(void)spank;
	(void)count;
	(void)words;
	char said[WORKDIR_WORDS_MAX + 1] = "", here[PATH_MAX];
	int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	ssize_t length = file < 0 ? 0 : read(file, said, WORKDIR_WORDS_MAX);
	if (file >= 0)
		close(file);
	const char *asked = asked_for(said, length > 0 ? (size_t)length : 0);
	const char *set = getenv("SLURM_WORKING_DIR");
	const char *dir = asked != NULL ? asked : set != NULL ? set : getcwd(here, sizeof here);
	if (dir == NULL || pool_of(dir, environ) == NULL)
		unsetenv(WORKDIR);
	else if (setenv(WORKDIR, dir, 1) != 0)
		slurm_error("tidepool: tasks are not told to run in %s: %m", dir);
	return ESPANK_SUCCESS;
}

/* True when the stager of this node knows the job. */
static int is_known(uint32_t job)
{
	char path[PATH_MAX];
	int length = snprintf(path, sizeof path, "%s/%u", jobs, job);
	return length > 0 && (size_t)length < sizeof path && access(path, F_OK) == 0;
}

/* Runs `tidepool stage job add-process JOB PID` for this process; 0 when the stager has it. */
static int add_process(uint32_t job, uid_t uid, gid_t gid)
{
	char id[16], pid[16], user[16], group[16];
	snprintf(id, sizeof id, "%u", job);
	snprintf(pid, sizeof pid, "%d", (int)getpid());
	snprintf(user, sizeof user, "%u", (unsigned)uid);
	snprintf(group, sizeof group, "%u", (unsigned)gid);
	pid_t child = fork();
	if (child < 0)
		return -1;
	if (child == 0) {
		char *const words[] = { (char *)program, "stage", "job", "add-process", id, pid, "--uid", user, "--gid", group, NULL };
		char *const nothing[] = { "PATH=/usr/bin:/bin", NULL };
		int null = open("/dev/null", O_RDWR);
		if (null >= 0) {
			dup2(null, 0);
			dup2(null, 1);
			dup2(null, 2);
		}
		execve(program, words, nothing);
		_exit(127);
	}
	int status;
	while (waitpid(child, &status, 0) < 0) {
		if (errno != EINTR)
			return -1;
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* As root, in what becomes the task. */
int slurm_spank_task_init_privileged(spank_t spank, int count, char **words)
{
	(void)count;
	(void)words;
	uint32_t job;
	uid_t uid;
	gid_t gid;
	if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS || !is_known(job))
		return ESPANK_SUCCESS;
	if (spank_get_item(spank, S_JOB_UID, &uid) != ESPANK_SUCCESS || spank_get_item(spank, S_JOB_GID, &gid) != ESPANK_SUCCESS)
		return ESPANK_SUCCESS;
	int result = add_process(job, uid, gid);
	if (result != 0)
		slurm_error("tidepool: this task cannot stage data itself: %s stage job add-process ended with %d", program, result);
	return ESPANK_SUCCESS;
}

/* What of `/tmp/tidepool-UID/POOL/...`, or `/tmp/tidepool-UID-N/POOL/...`, comes behind the user's directory; NULL for other places. */
static const char *behind_own(const char *place)
{
	char base[64];
	int length = snprintf(base, sizeof base, "/tmp/tidepool-%u", (unsigned)getuid());
	if (strncmp(place, base, (size_t)length) != 0)
		return NULL;
	place += length;
	if (place[0] == '-' && place[1] >= '1' && place[1] <= '0' + PLACES_MAX)
		place += 2;
	return place[0] == '/' ? place : NULL;
}

/* Finds the same in that of the user's directories that has it. One that is not his, or open to others, is nobody's word. */
static int find_place(const char *behind, char *found, size_t size)
{
	uid_t own = getuid();
	for (int place = 0; place <= PLACES_MAX; place++) {
		char base[64];
		struct stat at;
		int length = snprintf(base, sizeof base, "/tmp/tidepool-%u", (unsigned)own);
		if (place > 0)
			snprintf(base + length, sizeof base - (size_t)length, "-%d", place);
		if (lstat(base, &at) != 0)
			continue;
		if (!S_ISDIR(at.st_mode) || at.st_uid != own || (at.st_mode & 077) != 0) {
			slurm_info("tidepool: %s is user %u's, not %u's: no pool is looked for there", base, (unsigned)at.st_uid, (unsigned)own);
			continue;
		}
		int whole = snprintf(found, size, "%s%s", base, behind);
		if (whole > 0 && (size_t)whole < size && access(found, F_OK) == 0)
			return 0;
	}
	return -1;
}

/* True for variables that name a pool's directory, or a file in it. */
static int names_pool(const char *variable, size_t length)
{
	static const char *const ends[] = { "_POOL", "_HOSTFILE" };
	if (names_directory(variable, length))
		return 1;
	for (size_t at = 0; at < sizeof ends / sizeof ends[0]; at++) {
		size_t end = strlen(ends[at]);
		if (length >= strlen("TIDEPOOL") + end && length < NAME_MAX_BYTES && strncmp(variable, "TIDEPOOL_", 9) == 0 &&
		    strncmp(variable + length - end, ends[at], end) == 0)
			return 1;
	}
	return 0;
}

/*
 * Has variables of the job's pools say where these are. They were made before the pools, which go elsewhere where another user has
 * taken the first name on any node: what he has put there would be taken for the pool. A variable of a pool that is not here is taken out.
 */
static void set_places(spank_t spank)
{
	static char names[VARIABLES_MAX][NAME_MAX_BYTES];
	char missing[PATH_MAX] = "";
	int known = 0, gone = 0;
	char **variables;
	if (spank_get_item(spank, S_JOB_ENV, &variables) != ESPANK_SUCCESS || variables == NULL)
		return;
	for (; *variables != NULL && known < VARIABLES_MAX; variables++) {
		size_t length = strcspn(*variables, "=");
		if (names_pool(*variables, length))
			snprintf(names[known++], NAME_MAX_BYTES, "%.*s", (int)length, *variables);
	}
	for (int at = 0; at < known; at++) {
		char value[PATH_MAX], found[PATH_MAX];
		const char *behind;
		if (spank_getenv(spank, names[at], value, sizeof value) != ESPANK_SUCCESS || (behind = behind_own(value)) == NULL)
			continue;
		if (find_place(behind, found, sizeof found) != 0) {
			snprintf(missing, sizeof missing, "%s: there is nothing at %s", names[at], value);
			gone++;
			spank_unsetenv(spank, names[at]);
		} else if (strcmp(value, found) != 0 && spank_setenv(spank, names[at], found, 1) != ESPANK_SUCCESS) {
			spank_unsetenv(spank, names[at]);
		}
	}
	/* One word for all of them: whole components of heterogeneous jobs are on other nodes than the pool. */
	if (gone > 0)
		slurm_error("tidepool: this node has not the job's pool (%s, nor in another directory of this user's); %d variable(s) that name it are not set here",
			    missing, gone);
}

/* True where the job's pool is mounted. */
static int is_mounted(spank_t spank)
{
	char dir[PATH_MAX];
	struct statfs at;
	if (spank_getenv(spank, "TIDEPOOL_DIR", dir, sizeof dir) != ESPANK_SUCCESS)
		return 0;
	return statfs(dir, &at) == 0 && (unsigned long)at.f_type == FUSE_SUPER_MAGIC;
}

/* True where tasks see the job's pool by the preload library: by that of Slurm's hooks, or as srun itself does. */
static int is_by_library(spank_t spank)
{
	char library[PATH_MAX], dir[PATH_MAX];
	if (spank_getenv(spank, "TIDEPOOL_DIR", dir, sizeof dir) != ESPANK_SUCCESS || is_mounted(spank))
		return 0;
	return spank_getenv(spank, "TIDEPOOL_PRELOAD", library, sizeof library) == ESPANK_SUCCESS ||
	       spank_getenv(spank, "TIDEPOOL_CWD", library, sizeof library) == ESPANK_SUCCESS;
}

/* The preload library takes its working directory from this where the kernel's is the pool's own: NUMBER:PATH. */
static int library_goes_to(spank_t spank, const char *dir)
{
	char told[PATH_MAX + 32];
	if (spank_getenv(spank, "TIDEPOOL_CWD", told, sizeof told) != ESPANK_SUCCESS)
		return 0;
	const char *path = strchr(told, ':');
	return path != NULL && strcmp(path + 1, dir) == 0;
}

/* Puts a task whose step is to run in a pool there. Anywhere else it would leave its results where nobody looks. */
static void go_to_workdir(spank_t spank, int by_library)
{
	char dir[PATH_MAX], here[PATH_MAX], found[PATH_MAX];
	if (spank_getenv(spank, WORKDIR, dir, sizeof dir) != ESPANK_SUCCESS)
		return;
	spank_unsetenv(spank, WORKDIR);
	if (getcwd(here, sizeof here) != NULL && strcmp(here, dir) == 0)
		return;
	char **variables;
	const char *pool = NULL, *behind = behind_own(dir);
	if (spank_get_item(spank, S_JOB_ENV, &variables) == ESPANK_SUCCESS)
		pool = pool_of(dir, variables);
	if (!by_library && (chdir(dir) == 0 || (behind != NULL && find_place(behind, found, sizeof found) == 0 && chdir(found) == 0)))
		return;
	int why = errno;
	if (by_library && pool != NULL && library_goes_to(spank, dir) && chdir(pool) == 0)
		return;
	slurm_error("tidepool: this task was to run in %s, and cannot: %s. Start it elsewhere, and have its program change there", dir,
		    by_library ? "the pool is not mounted on this node, and srun was not started there" : strerror(why));
	_exit(1);
}

/* As the user, in what becomes the task: where its pools are; and where one is not mounted, the preload library, before others. */
int slurm_spank_task_init(spank_t spank, int count, char **words)
{
	(void)count;
	(void)words;
	char library[PATH_MAX], others[PRELOAD_MAX], all[PATH_MAX + PRELOAD_MAX + 2];
	set_places(spank);
	int by_library = is_by_library(spank);
	go_to_workdir(spank, by_library);
	if (!by_library || spank_getenv(spank, "TIDEPOOL_PRELOAD", library, sizeof library) != ESPANK_SUCCESS || library[0] == '\0')
		return ESPANK_SUCCESS;
	spank_err_t result = spank_getenv(spank, "LD_PRELOAD", others, sizeof others);
	if (result == ESPANK_NOSPACE) {
		slurm_error("tidepool: LD_PRELOAD is too long; this task does not see the pool");
		return ESPANK_SUCCESS;
	}
	if (result != ESPANK_SUCCESS || others[0] == '\0')
		snprintf(all, sizeof all, "%s", library);
	else if (strstr(others, library) != NULL)
		return ESPANK_SUCCESS;
	else
		snprintf(all, sizeof all, "%s:%s", library, others);
	result = spank_setenv(spank, "LD_PRELOAD", all, 1);
	if (result != ESPANK_SUCCESS)
		slurm_error("tidepool: LD_PRELOAD: %s; this task does not see the pool", spank_strerror(result));
	return ESPANK_SUCCESS;
}
