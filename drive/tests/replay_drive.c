// SPDX-License-Identifier: Apache-2.0
/*
 * Replays requests on stdin through drive.h, in a clock of its own, and prints what they become.
 *
 *   replay_drive [late SEED | wake] [events]
 *
 *   drive SIZE START NAME=VALUE ...                 a drive: struct lab_drive_parameters, in order
 *   NUMBER ARRIVAL OP FUA OFFSET LENGTH [-> ...]    OP: read, write, flush; in order of arrival, ns
 *   NUMBER TIME stall UNTIL
 *   NUMBER TIME lose [-> ...]
 *   closed DEPTH COUNT LENGTH SEED [THINK]          so many random reads, DEPTH in flight, each THINK ns
 *                                                   after the end of another one
 *
 * That is the log of the disk server (nbdkit_disk.c), in any order. It prints the same lines, with the
 * computed completions, in order of time. `events` adds these, where they happen:
 *
 *   TIME dirty PAGE SECTORS BEFORE SLOT NUMBER
 *   TIME clean PAGE SECTORS SLOT
 *
 * By default the core is advanced at every event; `late`: at arrivals, and at random times;
 * `wake`: at arrivals, and when lab_drive_wake() says. Then it tells what was late, and on stderr the wake-ups.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAB_DRIVE_REQUESTS 4096
#include "../drive.h"

#define LINES 100000
#define NUMBERS (sizeof(struct lab_drive_parameters) / 8)

struct line {
	u64 number, time, offset, length;
	int op;			/* enum lab_drive_op; or: */
	bool fua;
};

enum { STALL = 100, LOSE };

static const char *const words[] = { "read", "write", "flush" };
static struct line *lines;
static unsigned count;
static struct lab_drive *drive;
static u64 size, start, chance;
static bool late, waking, events;
static u64 awake, wakes;	/* time of the last wake-up, their number */
static struct {
	u64 left, length, think, count;
	struct line *ended[LAB_DRIVE_REQUESTS];
} closed;

/* Numbers at random (splitmix64). */
static u64 draw(u64 *state)
{
	u64 x = *state += 0x9e3779b97f4a7c15ull;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

/* Says that an event which needs the caller was processed late. */
static void check(const struct lab_drive *d)
{
	if (waking && d->clock != awake)
		printf("late: %" PRIu64 " instead of %" PRIu64 "\n", awake, d->clock);
}

static void done(struct lab_drive *d, void *tag, u64 when, bool failed)
{
	struct line *l = tag;

	check(d);
	printf("%" PRIu64 " %" PRIu64 " %s %d %" PRIu64 " %" PRIu64 " -> %" PRIu64 "%s\n", l->number, l->time,
	       words[l->op], l->fua, l->offset, l->length, when, failed ? " failed" : "");
	if (closed.length) {
		l->time = when;
		closed.ended[closed.count++] = l;
	}
}

static void dirty(struct lab_drive *d, void *tag, u64 page, u8 sectors, u8 before, u32 slot)
{
	check(d);
	if (events)
		printf("%" PRIu64 " dirty %" PRIu64 " %u %u %u %" PRIu64 "\n", d->clock, page, sectors, before,
		       slot, ((struct line *)tag)->number);
}

static void clean(struct lab_drive *d, u64 page, u8 sectors, u32 slot)
{
	check(d);
	if (events)
		printf("%" PRIu64 " clean %" PRIu64 " %u %u\n", d->clock, page, sectors, slot);
}

static const struct lab_drive_ops ops = { .done = done, .dirty = dirty, .clean = clean };

/* Advances the drive whenever it must, to `now` at most, and then, which may be too late. */
static void wake_until(u64 now)
{
	u64 t;

	while ((t = lab_drive_wake(drive)) <= now && t != LAB_NEVER) {
		awake = t;
		wakes++;
		lab_drive_advance(drive, t);
	}
	if (now == LAB_NEVER)
		return;
	awake = now;
	lab_drive_advance(drive, now);
}

static void run_until(u64 now)
{
	if (waking) {
		wake_until(now);
		return;
	}
	while (!late && lab_drive_next(drive) <= now && lab_drive_next(drive) != LAB_NEVER)
		lab_drive_advance(drive, lab_drive_next(drive));
	if (late && draw(&chance) % 2)
		lab_drive_advance(drive, now);
}

static void submit(struct line *l)
{
	if (!lab_drive_submit(drive, l, l->op, l->fua, l->offset, l->length, l->time)) {
		fprintf(stderr, "more than %d requests in flight\n", LAB_DRIVE_REQUESTS);
		exit(1);
	}
}

static int by_number(const void *a, const void *b)
{
	const struct line *x = a, *y = b;

	return (x->number > y->number) - (x->number < y->number);
}

static void finish(void)
{
	unsigned i;

	qsort(lines, count, sizeof(*lines), by_number);
	for (i = 0; i < count; i++) {
		struct line *l = &lines[i];

		run_until(l->time);
		if (l->op == STALL) {
			lab_drive_stall(drive, l->offset, l->time);
			printf("%" PRIu64 " %" PRIu64 " stall %" PRIu64 "\n", l->number, l->time, l->offset);
		} else if (l->op == LOSE) {
			u64 lost = lab_drive_lose(drive, l->time);

			printf("%" PRIu64 " %" PRIu64 " lose -> %" PRIu64 "\n", l->number, l->time, lost);
		} else {
			submit(l);
		}
	}
	if (drive && waking)
		wake_until(LAB_NEVER);
	while (drive && lab_drive_next(drive) != LAB_NEVER)
		lab_drive_advance(drive, late ? LAB_NEVER - 1 : lab_drive_next(drive));
	count = 0;
}

static void begin(char *line)
{
	struct lab_drive_parameters p = { 0 };
	unsigned n = 0;
	char *word;

	strtok(line, " ");
	size = strtoull(strtok(NULL, " "), NULL, 10);
	start = strtoull(strtok(NULL, " "), NULL, 10);
	while ((word = strtok(NULL, " \n")) && strchr(word, '=') && n < NUMBERS)
		((s64 *)&p)[n++] = strtoll(strchr(word, '=') + 1, NULL, 10);
	free(drive);
	drive = n == NUMBERS && lab_drive_bytes(&p) ? calloc(1, lab_drive_bytes(&p)) : NULL;
	if (!drive || !lab_drive_init(drive, &p, size, &ops, start)) {
		printf("out of range\n");
		exit(0);
	}
	printf("drive\n");
}

static void close_loop(u64 depth, u64 requests, u64 seed)
{
	u64 i, number = 0, t;
	struct line *of = calloc(depth, sizeof(*of));

	closed.left = requests;
	closed.count = 0;
	for (i = 0; i < depth; i++) {
		of[i].time = start;
		closed.ended[closed.count++] = &of[i];
	}
	for (;;) {
		for (i = 0; i < closed.count && closed.left; i++, closed.left--) {
			struct line *l = closed.ended[i];

			*l = (struct line){ .number = number++, .op = LAB_DRIVE_READ, .length = closed.length,
					    .time = l->time + closed.think,
					    .offset = draw(&seed) % (size / closed.length) * closed.length };
			closed.ended[i] = NULL;
			submit(l);
		}
		closed.count = 0;
		t = lab_drive_next(drive);
		if (t == LAB_NEVER)
			break;
		lab_drive_advance(drive, t);
	}
	closed.length = 0;
	free(of);
}

int main(int argc, char **argv)
{
	static char line[4096];
	u64 a, b, c, e, f;
	char op[8];
	int i, fua;

	for (i = 1; i < argc; i++) {
		events |= !strcmp(argv[i], "events");
		waking |= !strcmp(argv[i], "wake");
		if (!strcmp(argv[i], "late") && i + 1 < argc) {
			late = true;
			chance = strtoull(argv[i + 1], NULL, 10);
		}
	}
	lines = calloc(LINES, sizeof(*lines));
	while (fgets(line, sizeof(line), stdin)) {
		if (!strncmp(line, "drive ", 6)) {
			finish();
			begin(line);
		} else if (drive && sscanf(line, "closed %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64,
					   &a, &b, &c, &e, &f) >= 4 && a && a <= LAB_DRIVE_REQUESTS && c) {
			closed.length = c;
			closed.think = 0;
			sscanf(line, "closed %*u %*u %*u %*u %" SCNu64, &closed.think);
			close_loop(a, b, e);
		} else if (drive && count < LINES &&
			   sscanf(line, "%" SCNu64 " %" SCNu64 " %7s %d %" SCNu64 " %" SCNu64, &a, &b, op, &fua, &c,
				  &e) == 6) {
			int o = op[0] == 'r' ? LAB_DRIVE_READ : op[0] == 'w' ? LAB_DRIVE_WRITE : LAB_DRIVE_FLUSH;

			lines[count++] = (struct line){ a, b, c, e, o, fua };
		} else if (drive && count < LINES && sscanf(line, "%" SCNu64 " %" SCNu64 " stall %" SCNu64, &a, &b,
							    &c) == 3) {
			lines[count++] = (struct line){ a, b, c, 0, STALL, false };
		} else if (drive && count < LINES && sscanf(line, "%" SCNu64 " %" SCNu64 " los%1[e]", &a, &b, op) == 3) {
			lines[count++] = (struct line){ a, b, 0, 0, LOSE, false };
		} else {
			fprintf(stderr, "not understood: %s", line);
			return 1;
		}
	}
	finish();
	if (waking)
		fprintf(stderr, "%" PRIu64 " wakes\n", wakes);
	return 0;
}
