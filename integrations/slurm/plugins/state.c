/*
 * tidepool_job_state JOB: how a job's program has ended, as slurmctld knows it while the job's data are staged out.
 *
 * All that Slurm's commands print of such a job is COMPLETING, which hides whether it was cancelled: that is a flag, and
 * the state below it is in the answer (slurm.h, JOB_STATE_BASE). Prints that state's name, as scontrol prints it of a job
 * that is over, or a number for one that has no name here. Exit status: 0 printed, 1 not known (why on stderr), 2 usage.
 */
#include <errno.h>
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	uint32_t state;
	const char *name;
} names[] = {
	{ JOB_PENDING, "PENDING" },	{ JOB_RUNNING, "RUNNING" },   { JOB_SUSPENDED, "SUSPENDED" },
	{ JOB_COMPLETE, "COMPLETED" },	{ JOB_CANCELLED, "CANCELLED" }, { JOB_FAILED, "FAILED" },
	{ JOB_TIMEOUT, "TIMEOUT" },	{ JOB_NODE_FAIL, "NODE_FAIL" }, { JOB_PREEMPTED, "PREEMPTED" },
	{ JOB_BOOT_FAIL, "BOOT_FAIL" }, { JOB_DEADLINE, "DEADLINE" },  { JOB_OOM, "OUT_OF_MEMORY" },
};

static void print(uint32_t state)
{
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		if (names[i].state == (state & JOB_STATE_BASE)) {
			puts(names[i].name);
			return;
		}
	}
	printf("%u\n", state & JOB_STATE_BASE);
}

static int tell(uint32_t job)
{
	job_info_msg_t *message = NULL;

	if (slurm_load_job(&message, job, SHOW_ALL) != SLURM_SUCCESS) {
		fprintf(stderr, "tidepool_job_state: job %u: %s\n", job, slurm_strerror(errno));
		return 1;
	}
	/* Of a heterogeneous job or an array it tells more than one. */
	for (uint32_t i = 0; i < message->record_count; i++) {
		if (message->job_array[i].job_id == job) {
			print(message->job_array[i].job_state);
			slurm_free_job_info_msg(message);
			return 0;
		}
	}
	fprintf(stderr, "tidepool_job_state: job %u: slurmctld told of others only\n", job);
	slurm_free_job_info_msg(message);
	return 1;
}

int main(int count, char **words)
{
	char *end = NULL;
	unsigned long job = count == 2 ? strtoul(words[1], &end, 10) : 0;

	if (job == 0 || job >= NO_VAL || *end != 0) {
		fprintf(stderr, "usage: tidepool_job_state JOB\n");
		return 2;
	}
	slurm_init(NULL);
	return tell((uint32_t)job);
}
