/* What a hostile user tries through the C libraries, one call a run: `submit OP NAME HOST PATH NAME HOST PATH`, `status ID`, `wait ID`,
 * `cancel ID`, or a call of administration with a job and a process of somebody else's. Prints what came of it; 1 if it was refused. */
#include <norns.h>
#include <nornsctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char memory[4096];

static int told(norns_error_t code, int number)
{
	printf("code %d errno %d: %s\n", code, number, code == NORNS_SUCCESS ? "" : norns_error_detail());
	return code == NORNS_SUCCESS ? 0 : 1;
}

static norns_resource_t end(char **words)
{
	if (strcmp(words[0], "memory") == 0)
		return NORNS_MEMORY_REGION(memory, sizeof memory);
	if (strcmp(words[1], "-") != 0)
		return NORNS_REMOTE_PATH(words[0], words[1], words[2]);
	return NORNS_LOCAL_PATH(words[0], words[2]);
}

static int how(norns_iotask_t *task)
{
	norns_stat_t stats;
	norns_error_t code = norns_error(task, &stats);
	if (code != NORNS_SUCCESS)
		return told(code, 0);
	return told(stats.st_task_error, stats.st_sys_errno);
}

static int submit(char **words)
{
	norns_op_t op = (norns_op_t)atoi(words[0]);
	norns_iotask_t task;
	if (op == NORNS_IOTASK_REMOVE)
		task = NORNS_IOTASK(op, end(words + 1));
	else
		task = NORNS_IOTASK(op, end(words + 1), end(words + 4));
	norns_error_t code = norns_submit(&task);
	if (code == NORNS_SUCCESS)
		code = norns_wait(&task, NULL);
	return code == NORNS_SUCCESS ? how(&task) : told(code, 0);
}

static int about(const char *what, norns_tid_t id)
{
	norns_iotask_t task;
	memset(&task, 0, sizeof task);
	task.t_id = id;
	if (strcmp(what, "status") == 0)
		return how(&task);
	return told(strcmp(what, "cancel") == 0 ? norns_cancel(&task) : norns_wait(&task, NULL), 0);
}

static int administer(const char *what, uint32_t job, pid_t process)
{
	nornsctl_backend_t root = NORNSCTL_BACKEND(NORNS_BACKEND_POSIX_FILESYSTEM, false, "/", 1);
	nornsctl_job_limit_t limit = NORNSCTL_JOB_LIMIT("lustre://", 0), *limits = &limit;
	const char *host = "node1";
	nornsctl_job_t spec = NORNSCTL_JOB(&host, 1, &limits, 1);
	if (strcmp(what, "command") == 0)
		return told(nornsctl_send_command(NORNSCTL_CMD_SHUTDOWN, NULL), 0);
	if (strcmp(what, "register") == 0)
		return told(nornsctl_register_namespace("evil://", &root), 0);
	if (strcmp(what, "update") == 0)
		return told(nornsctl_update_namespace("lustre://", &root), 0);
	if (strcmp(what, "unregister") == 0)
		return told(nornsctl_unregister_namespace("lustre://"), 0);
	if (strcmp(what, "job") == 0)
		return told(nornsctl_register_job(4711, &spec), 0);
	if (strcmp(what, "change") == 0)
		return told(nornsctl_update_job(job, &spec), 0);
	if (strcmp(what, "end") == 0)
		return told(nornsctl_unregister_job(job), 0);
	if (strcmp(what, "join") == 0)
		return told(nornsctl_add_process(job, getuid(), getgid(), getpid()), 0);
	if (strcmp(what, "leave") == 0)
		return told(nornsctl_remove_process(job, 20001, 20001, process), 0);
	return told(NORNS_EBADARGS, 0);
}

int main(int count, char **words)
{
	if (count == 9 && strcmp(words[1], "submit") == 0)
		return submit(words + 2);
	if (count == 3)
		return about(words[1], (norns_tid_t)atoi(words[2]));
	if (count == 4)
		return administer(words[1], (uint32_t)atoi(words[2]), atoi(words[3]));
	return 2;
}
