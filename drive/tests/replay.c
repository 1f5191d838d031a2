// SPDX-License-Identifier: Apache-2.0
/*
 * Replays cases on stdin through throttle.h, in a clock of its own: prints when each request begins.
 *
 *   case NAME MEMBERS OP_SIZE
 *   l BUCKET AVG MAX SECONDS
 *   r ARRIVAL MEMBER DIRECTION BYTES [anything]      in order of arrival, nanoseconds
 *
 * A first argument makes all averages and maxima larger, by so many parts in a million and at least by 1.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../throttle.h"

#define REQUESTS 100000

struct request {
	u64 bytes, begin;
	struct request *next;
};

static struct lab_throttle throttle;
static struct lab_limit limits[LAB_BUCKETS];
static struct request requests[REQUESTS];
static struct request *head[LAB_MEMBERS][LAB_DIRECTIONS], **tail[LAB_MEMBERS][LAB_DIRECTIONS];
static unsigned count;

static void run_until(u64 now)
{
	u64 due;

	while ((due = lab_throttle_due(&throttle)) <= now && due != LAB_NEVER) {
		enum lab_direction dir;
		u32 member = lab_throttle_fire(&throttle, &dir);
		struct request *r = head[member][dir];

		if (!r) {
			lab_throttle_pass(&throttle, member, dir, due);
			continue;
		}
		head[member][dir] = r->next;
		if (!r->next)
			tail[member][dir] = &head[member][dir];
		r->begin = due;
		lab_throttle_begin(&throttle, member, dir, r->bytes, due);
	}
}

static u64 larger(u64 rate, u64 parts)
{
	return rate + (rate * parts + 999999) / 1000000;
}

static void finish(void)
{
	unsigned i;

	run_until(LAB_NEVER);
	for (i = 0; i < count; i++)
		printf("%llu\n", (unsigned long long)requests[i].begin);
	count = 0;
}

int main(int argc, char **argv)
{
	u64 parts = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
	unsigned long long a, b, c;
	unsigned members = 1, m, d;
	char line[256], name[64];
	u64 op_size = 0;

	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "case %63s %u %llu", name, &members, &a) == 3) {
			finish();
			printf("case %s\n", name);
			op_size = a;
			memset(limits, 0, sizeof(limits));
			memset(head, 0, sizeof(head));
		} else if (sscanf(line, "l %u %llu %llu %llu", &m, &a, &b, &c) == 4 && m < LAB_BUCKETS) {
			limits[m] = (struct lab_limit){ larger(a, parts), larger(b, parts), c };
		} else if (sscanf(line, "r %llu %u %u %llu", &a, &m, &d, &b) == 4 && count < REQUESTS &&
			   m < members && d < LAB_DIRECTIONS) {
			struct request *r = &requests[count];

			if (!count && !lab_throttle_init(&throttle, limits, op_size, members, 0)) {
				fprintf(stderr, "%s: limits not valid\n", name);
				return 1;
			}
			count++;
			run_until(a);
			*r = (struct request){ .bytes = b, .begin = a };
			if (!head[m][d])
				tail[m][d] = &head[m][d];
			if (!lab_throttle_admit(&throttle, m, d, b, a)) {
				*tail[m][d] = r;
				tail[m][d] = &r->next;
			}
			run_until(a);
		} else {
			fprintf(stderr, "not understood: %s", line);
			return 1;
		}
	}
	finish();
	return 0;
}
