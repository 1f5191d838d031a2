/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * A seeded disturbance of a guest, for `lab hunt`: how late a disk receives each request, and when the guest's
 * CPU is preempted or taken away.
 *
 * All numbers follow from the seed, in integers. One file for the guest's kernel and for tests in user space. It
 * uses no clock, lock or allocation.
 *
 * Durations are drawn evenly over their logarithm, so that races of microseconds and of milliseconds both get
 * their chance. The seed also decides how large they become: a seed may have calm disks and many preemptions, or
 * the contrary.
 */
#ifndef LAB_DISTURB_H
#define LAB_DISTURB_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdbool.h>
#include <stdint.h>
typedef uint64_t u64;
typedef uint32_t u32;
#endif

/* Exponents of nanoseconds: 2^10 is 1 us, 2^20 is 1 ms, 2^24 is 17 ms. */
#define LAB_DISTURB_LEAST	10
#define LAB_DISTURB_LATE	14	/* the largest delay of a request is 2^14 to 2^24 ns, by the seed */
#define LAB_DISTURB_LATES	11
#define LAB_DISTURB_SOON	13	/* the largest time from a request's end or a wake-up to a point is 2^13 to 2^16 ns */
#define LAB_DISTURB_SOONS	4
#define LAB_DISTURB_APART	22	/* the largest time between two points: 4 ms */
#define LAB_DISTURB_AWAY	22	/* longest time without CPU: 4 ms */

struct lab_disturb {
	u64 requests, points;	/* states of two independent sequences */
	u32 late, soon;		/* exponents of the largest delay, and of the largest time to a point */
};

/* Returns the next number of a sequence: splitmix64 (G. Steele et al., OOPSLA 2014). */
static inline u64 lab_disturb_draw(u64 *state)
{
	u64 z = *state += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

/* Returns nanoseconds from 2^10 to just below 2^most, evenly over their logarithm. */
static inline u64 lab_disturb_span(u64 *state, u32 most)
{
	u64 drawn = lab_disturb_draw(state);
	u64 least = 1ull << (LAB_DISTURB_LEAST + (u32)drawn % (most - LAB_DISTURB_LEAST));

	return least + ((drawn >> 32) & (least - 1));
}

static inline void lab_disturb_init(struct lab_disturb *d, u64 seed)
{
	d->requests = seed;
	d->points = ~seed;
	d->late = LAB_DISTURB_LATE + (u32)lab_disturb_draw(&d->requests) % LAB_DISTURB_LATES;
	d->soon = LAB_DISTURB_SOON + (u32)lab_disturb_draw(&d->points) % LAB_DISTURB_SOONS;
}

/* Returns how late the disk receives the next request, in nanoseconds. Half of the requests are not late. */
static inline u64 lab_disturb_late(struct lab_disturb *d)
{
	u64 span = lab_disturb_span(&d->requests, d->late);

	return lab_disturb_draw(&d->requests) & 1 ? span : 0;
}

/* Returns nanoseconds until the next point, at which the running thread is preempted. */
static inline u64 lab_disturb_apart(struct lab_disturb *d)
{
	return lab_disturb_span(&d->points, LAB_DISTURB_APART);
}

/*
 * Returns nanoseconds from a request's end to the next point, which is then that early; 0: it stays where it is.
 * After a request's end threads wake up and run.
 */
static inline u64 lab_disturb_soon(struct lab_disturb *d)
{
	u64 span = lab_disturb_span(&d->points, d->soon);

	return lab_disturb_draw(&d->points) % 4 ? span : 0;
}

/*
 * Returns nanoseconds from a thread's wake-up to the next point, which is then that early; 0: it stays where it
 * is. Two threads that one event wakes then run in either order, and one is preempted in what it does first.
 */
static inline u64 lab_disturb_woken(struct lab_disturb *d)
{
	u64 span = lab_disturb_span(&d->points, d->soon);

	return lab_disturb_draw(&d->points) & 1 ? span : 0;
}

/* Returns for how many nanoseconds all threads lose the CPU at a point, while disks go on; mostly 0. */
static inline u64 lab_disturb_away(struct lab_disturb *d)
{
	u64 span = lab_disturb_span(&d->points, LAB_DISTURB_AWAY);

	return lab_disturb_draw(&d->points) % 4 ? 0 : span;
}

#endif
