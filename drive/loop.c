// SPDX-License-Identifier: Apache-2.0
/*
 * Workloads on drive.h in a clock of its own, as a shared library for drive/loop.py: what a drive of these
 * parameters answers, without a guest, a server or a file.
 *
 * Each function returns the number of answered requests, or 0 if drive.h refuses the parameters. Times are
 * nanoseconds.
 */
#include <stdlib.h>

#define LAB_DRIVE_REQUESTS 4096
#include "drive.h"

struct loop {
	u64 now, answered, most;
	u64 warm, ended, begin;		/* the first `warm` answers do not count; the last of them is at `begin` */
	u64 *latency;			/* of each answered request that counts */
	u64 *arrival;			/* by tag */
	u32 *free;			/* tags that have ended */
	u32 frees;
};

/* Numbers at random (splitmix64). */
static u64 draw(u64 *state)
{
	u64 x = *state += 0x9e3779b97f4a7c15ull;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static void done(struct lab_drive *d, void *tag, u64 when, bool failed)
{
	struct loop *l = d->owner;
	u64 number = (u64)(uintptr_t)tag;

	(void)failed;
	if (l->ended++ < l->warm)
		l->begin = when;
	else if (l->answered < l->most)
		l->latency[l->answered++] = when - l->arrival[number];
	l->free[l->frees++] = (u32)number;
	l->now = when;
}

static void dirty(struct lab_drive *d, void *tag, u64 page, u8 sectors, u8 before, u32 slot)
{
	(void)d, (void)tag, (void)page, (void)sectors, (void)before, (void)slot;
}

static void clean(struct lab_drive *d, u64 page, u8 sectors, u32 slot)
{
	(void)d, (void)page, (void)sectors, (void)slot;
}

static const struct lab_drive_ops ops = { .done = done, .dirty = dirty, .clean = clean };

static struct lab_drive *made(const struct lab_drive_parameters *p, u64 size, struct loop *l, u64 depth)
{
	struct lab_drive *d = lab_drive_bytes(p) ? calloc(1, lab_drive_bytes(p)) : NULL;

	if (!d || !lab_drive_init(d, p, size, &ops, 0)) {
		free(d);
		return NULL;
	}
	d->owner = l;
	l->arrival = calloc(depth, sizeof(*l->arrival));
	l->free = calloc(depth, sizeof(*l->free));
	return d;
}

static void ended(struct lab_drive *d, struct loop *l)
{
	free(l->arrival);
	free(l->free);
	free(d);
}

/* Whether requests of `block` bytes have a place within [from, from + span) of a disk: others would be beyond it. */
static bool fits(u64 size, u64 from, u64 span, u64 block)
{
	return block && block <= span && from <= size && span <= size - from;
}

/*
 * A closed loop: `depth` senders, each sends its next request `think` after its last one ended. Positions are
 * random within [from, from + span). `inside`: at most so many are in the drive, others wait in order of
 * arrival, as in the kernel. `reads`: share in millionths; the rest are writes. The first `warm` answers do not
 * count. Ends after `count` more, or `limit` later. *end: time of the last answer, since then. `written`: 1 for
 * each answer to a write.
 */
u64 lab_loop_closed(const struct lab_drive_parameters *p, u64 size, u64 from, u64 span, u64 block, u64 depth,
		    u64 inside, u64 reads, u64 think, u64 seed, u64 warm, u64 count, u64 limit, u64 *latency,
		    u8 *written, u64 *end)
{
	struct loop l = { .most = count, .warm = warm, .latency = latency };
	struct lab_drive *d;
	u64 waiting = 0, first = 0, in_drive = 0, sent = 0, t, i, answered;
	u32 *order;
	u8 *writes;

	if (!depth || depth >= LAB_DRIVE_REQUESTS || !fits(size, from, span, block))
		return 0;
	d = made(p, size, &l, depth);
	if (!d)
		return 0;
	order = calloc(depth, sizeof(*order));
	writes = calloc(depth, sizeof(*writes));
	for (i = 0; i < depth; i++)
		l.free[l.frees++] = (u32)i;
	for (;;) {
		for (i = 0; i < l.frees; i++) {	/* in order of their ends */
			l.arrival[l.free[i]] = l.now + think;
			order[(first + waiting++) % depth] = l.free[i];
		}
		l.frees = 0;
		while (waiting && in_drive < inside && l.answered < count) {
			u32 tag = order[first];
			u64 at = draw(&seed) % (span / block) * block + from;
			u64 when = lab_most(l.arrival[tag], l.now);
			bool write = draw(&seed) % 1000000 >= reads;

			writes[tag] = write;
			first = (first + 1) % depth;
			waiting--;
			in_drive++;
			answered = l.answered;
			lab_drive_submit(d, (void *)(uintptr_t)tag, write ? LAB_DRIVE_WRITE : LAB_DRIVE_READ, false, at,
					 block, when);
			for (i = answered; i < l.answered; i++)
				written[i] = writes[l.free[l.frees - (l.answered - i)]];
			in_drive -= l.frees;
			for (i = 0; i < l.frees; i++) {
				l.arrival[l.free[i]] = l.now + think;
				order[(first + waiting++) % depth] = l.free[i];
			}
			l.frees = 0;
			sent++;
		}
		t = lab_drive_next(d);
		if (l.answered >= count || t == LAB_NEVER || (l.ended >= warm && t - l.begin > limit))
			break;
		answered = l.answered;
		lab_drive_advance(d, t);
		for (i = answered; i < l.answered; i++)
			written[i] = writes[l.free[l.frees - (l.answered - i)]];
		in_drive -= l.frees;
	}
	*end = l.now - l.begin;
	free(order);
	free(writes);
	ended(d, &l);
	return l.answered;
}

/* One request at a time: each arrives `think` after the previous one ended. */
u64 lab_loop_trace(const struct lab_drive_parameters *p, u64 size, u64 count, const u8 *op, const u64 *offset,
		   const u64 *length, const u64 *think, u64 *latency)
{
	struct loop l = { .most = count, .latency = latency };
	struct lab_drive *d = made(p, size, &l, 1);
	u64 i;

	if (!d)
		return 0;
	for (i = 0; i < count; i++) {
		l.frees = 0;
		l.now += think[i];
		l.arrival[0] = l.now;
		if (!lab_drive_submit(d, (void *)0, op[i], false, offset[i], length[i], l.now))
			break;
		while (!l.frees && lab_drive_next(d) != LAB_NEVER)
			lab_drive_advance(d, lab_drive_next(d));
	}
	ended(d, &l);
	return l.answered;
}

/* `count` times: `writes` scattered writes one after the other, then a flush, whose time counts; then a pause. */
u64 lab_loop_flush(const struct lab_drive_parameters *p, u64 size, u64 from, u64 span, u64 block, u64 writes,
		   u64 pause, u64 seed, u64 count, u64 *latency)
{
	struct loop l = { .most = 1 };
	struct lab_drive *d;
	u64 i, n, one;

	l.latency = &one;
	d = fits(size, from, span, block) ? made(p, size, &l, 1) : NULL;
	if (!d)
		return 0;
	for (n = 0; n < count; n++) {
		for (i = 0; i <= writes; i++) {
			bool flush = i == writes;

			l.frees = 0;
			l.answered = 0;
			l.arrival[0] = l.now;
			lab_drive_submit(d, (void *)0, flush ? LAB_DRIVE_FLUSH : LAB_DRIVE_WRITE, false,
					 flush ? 0 : draw(&seed) % (span / block) * block + from, flush ? 0 : block, l.now);
			while (!l.frees && lab_drive_next(d) != LAB_NEVER)
				lab_drive_advance(d, lab_drive_next(d));
		}
		latency[n] = one;
		l.now += pause;
	}
	ended(d, &l);
	return count;
}
