/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Start times of requests to throttled disks: QEMU's leaky buckets and throttle groups, in integers.
 *
 * The rules are those of QEMU's util/throttle.c and block/throttle-groups.c; the code is new. One file for
 * the guest's kernel and for tests in user space. It uses no clock, lock or allocation: the caller passes
 * the time in nanoseconds, which must never decrease, and holds the waiting requests.
 *
 *   lab_throttle_admit()  a request arrives: it begins now, or the caller queues it
 *   lab_throttle_due()    when the next waiting request begins
 *   lab_throttle_fire()   returns its member; the caller takes the first request of that member and
 *   lab_throttle_begin()  direction, and passes its size (or lab_throttle_pass(): the request is gone)
 *
 * QEMU counts in doubles. Here a bucket counts billionths of a unit, and a unit of an operations
 * bucket is one byte of op_size. So the amounts that leak in whole nanoseconds, and the amounts that
 * are added, are whole numbers. Only the wait is rounded: down to whole nanoseconds, as in
 * QEMU.
 */
#ifndef LAB_THROTTLE_H
#define LAB_THROTTLE_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdbool.h>
#include <stdint.h>
typedef uint64_t u64;
typedef uint32_t u32;
#endif

/* Most members of a group. */
#define LAB_MEMBERS	64
#define LAB_NEVER	(~0ull)
#define LAB_SECOND	1000000000ull
/* QEMU's THROTTLE_VALUE_MAX, for a rate, and for a burst's rate times its length. */
#define LAB_RATE_MAX	1000000000000000ull

typedef unsigned __int128 lab_u128;

enum lab_direction { LAB_READ, LAB_WRITE, LAB_DIRECTIONS };

enum lab_bucket_index {
	LAB_BYTES_TOTAL, LAB_BYTES_READ, LAB_BYTES_WRITE,
	LAB_OPS_TOTAL, LAB_OPS_READ, LAB_OPS_WRITE,
	LAB_BUCKETS
};

/* One limit in the user's units; all zero: no limit. */
struct lab_limit {
	u64 avg;	/* units per second that leak */
	u64 max;	/* units per second while a burst lasts; 0: bucket of a tenth of a second */
	u64 seconds;	/* longest burst; 0 means 1 */
};

struct lab_bucket {
	u64 avg, max;		/* per second, in scaled units */
	lab_u128 size;		/* level up to which a request begins at once, in billionths */
	lab_u128 burst_size;
	lab_u128 level;
	lab_u128 burst_level;	/* leaks at max; counts only if bursts are longer than a second */
	bool bursts;
};

struct lab_throttle {
	struct lab_bucket bucket[LAB_BUCKETS];
	u64 op_size;	/* 0: every request is one operation */
	u64 leaked;	/* time up to which the buckets have leaked */
	u64 timers;	/* number of armed timers: equal times fire in the order of arming */
	u32 members;
	struct {
		bool armed;
		u64 due;
		u64 order;
		u32 token;	/* member whose turn it is; while armed, the member whose request begins at due */
		u32 pending[LAB_MEMBERS];
	} way[LAB_DIRECTIONS];
};

/* Returns whether QEMU would accept this limit, and its scaled rate fits. */
static inline bool lab_limit_valid(const struct lab_limit *l, u64 scale)
{
	if (l->avg > LAB_RATE_MAX || l->max > LAB_RATE_MAX || l->seconds > 0xffffffffull)
		return false;
	if (l->max && (!l->avg || l->max < l->avg))
		return false;
	if (l->seconds > 1 && (!l->max || l->max > LAB_RATE_MAX / l->seconds))
		return false;
	return !scale || (l->avg < (1ull << 62) / scale && l->max < (1ull << 62) / scale);
}

/* Starts with full capacity. False: a limit is not valid, and nothing is limited. */
static inline bool lab_throttle_init(struct lab_throttle *t, const struct lab_limit *limits, u64 op_size,
				     u32 members, u64 now)
{
	int i;

	*t = (struct lab_throttle){ .op_size = op_size, .leaked = now, .members = members };
	for (i = 0; i < LAB_BUCKETS; i++) {
		u64 scale = i >= LAB_OPS_TOTAL && op_size ? op_size : 1;

		if (!lab_limit_valid(&limits[i], scale) || members < 1 || members > LAB_MEMBERS) {
			*t = (struct lab_throttle){ .members = 1 };
			return false;
		}
	}
	for (i = 0; i < LAB_BUCKETS; i++) {
		const struct lab_limit *l = &limits[i];
		struct lab_bucket *b = &t->bucket[i];
		u64 scale = i >= LAB_OPS_TOTAL && op_size ? op_size : 1;

		b->avg = l->avg * scale;
		b->max = l->max * scale;
		b->bursts = l->seconds > 1;
		b->burst_size = (lab_u128)b->max * (LAB_SECOND / 10);
		if (l->max)
			b->size = (lab_u128)b->max * (l->seconds ? l->seconds : 1) * LAB_SECOND;
		else
			b->size = (lab_u128)b->avg * (LAB_SECOND / 10);
	}
	return true;
}

static inline bool lab_throttle_limits(const struct lab_throttle *t)
{
	int i;

	for (i = 0; i < LAB_BUCKETS; i++)
		if (t->bucket[i].avg)
			return true;
	return false;
}

/* Returns n / d, at most half of the largest u64, so that a time can be added. The kernel has no __udivti3. */
static inline u64 lab_divide(lab_u128 n, u64 d)
{
	u64 quotient = 0, rest = (u64)(n >> 64);
	int bit;

	if (!rest)
		return (u64)n / d;
	if (rest >= d / 2)
		return LAB_NEVER / 2;
	for (bit = 63; bit >= 0; bit--) {	/* rest < d / 2 < 2^63: the shift loses nothing */
		rest = rest << 1 | ((u64)n >> bit & 1);
		quotient <<= 1;
		if (rest >= d) {
			rest -= d;
			quotient |= 1;
		}
	}
	return quotient < LAB_NEVER / 2 ? quotient : LAB_NEVER / 2;
}

static inline void lab_leak(lab_u128 *level, u64 rate, u64 nanoseconds)
{
	lab_u128 leak = (lab_u128)rate * nanoseconds;

	*level = *level > leak ? *level - leak : 0;
}

static inline void lab_throttle_leak(struct lab_throttle *t, u64 now)
{
	int i;

	if (now <= t->leaked)
		return;
	for (i = 0; i < LAB_BUCKETS; i++) {
		struct lab_bucket *b = &t->bucket[i];

		lab_leak(&b->level, b->avg, now - t->leaked);
		lab_leak(&b->burst_level, b->max, now - t->leaked);
	}
	t->leaked = now;
}

static inline u64 lab_bucket_wait(const struct lab_bucket *b)
{
	if (!b->avg)
		return 0;
	if (b->level > b->size)
		return lab_divide(b->level - b->size, b->avg);
	if (b->bursts && b->burst_level > b->burst_size)
		return lab_divide(b->burst_level - b->burst_size, b->max);
	return 0;
}

/* Returns the nanoseconds until a request in this direction may begin. */
static inline u64 lab_throttle_wait(const struct lab_throttle *t, enum lab_direction dir)
{
	const int counts[] = { LAB_BYTES_TOTAL, LAB_BYTES_READ + dir, LAB_OPS_TOTAL, LAB_OPS_READ + dir };
	u64 longest = 0;
	int i;

	for (i = 0; i < 4; i++) {
		u64 wait = lab_bucket_wait(&t->bucket[counts[i]]);

		if (wait > longest)
			longest = wait;
	}
	return longest;
}

static inline void lab_bucket_pour(struct lab_bucket *b, u64 units)
{
	b->level += (lab_u128)units * LAB_SECOND;
	if (b->bursts)
		b->burst_level += (lab_u128)units * LAB_SECOND;
}

static inline void lab_throttle_account(struct lab_throttle *t, enum lab_direction dir, u64 bytes)
{
	/* An operation costs op_size units of its bucket, a larger request one unit per byte. */
	u64 ops = !t->op_size ? 1 : bytes > t->op_size ? bytes : t->op_size;

	lab_bucket_pour(&t->bucket[LAB_BYTES_TOTAL], bytes);
	lab_bucket_pour(&t->bucket[LAB_BYTES_READ + dir], bytes);
	lab_bucket_pour(&t->bucket[LAB_OPS_TOTAL], ops);
	lab_bucket_pour(&t->bucket[LAB_OPS_READ + dir], ops);
}

static inline void lab_throttle_arm(struct lab_throttle *t, enum lab_direction dir, u32 token, u64 due)
{
	t->way[dir].armed = true;
	t->way[dir].due = due;
	t->way[dir].order = ++t->timers;
	t->way[dir].token = token;
}

/* Returns the next member with waiting requests after the last one; if none waits, the calling member. */
static inline u32 lab_throttle_next(const struct lab_throttle *t, u32 asks, enum lab_direction dir)
{
	u32 start = t->way[dir].token, token = start;

	do {	/* QEMU adds new members at the front of its list, so it goes from last to first */
		token = token ? token - 1 : t->members - 1;
		if (t->way[dir].pending[token])
			return token;
	} while (token != start);
	return asks;
}

/* Returns whether this member has to wait; if so, arms the timer that ends the wait. */
static inline bool lab_throttle_waits(struct lab_throttle *t, u32 member, enum lab_direction dir, u64 now)
{
	u64 wait;

	if (t->way[dir].armed)
		return true;
	lab_throttle_leak(t, now);
	wait = lab_throttle_wait(t, dir);
	if (wait)
		lab_throttle_arm(t, dir, member, now + wait);
	return wait;
}

/* The request from fire() no longer exists: continue with the next one. */
static inline void lab_throttle_pass(struct lab_throttle *t, u32 member, enum lab_direction dir, u64 now)
{
	u32 token = lab_throttle_next(t, member, dir);

	if (!t->way[dir].pending[token] || lab_throttle_waits(t, token, dir, now))
		return;
	/* No wait: this member's next request, if it has one, begins before all other timers. */
	if (t->way[dir].pending[member]) {
		lab_throttle_arm(t, dir, member, now);
		t->way[dir].order = 0;
	} else {
		lab_throttle_arm(t, dir, token, now);
	}
}

/* A request begins: adds its whole size to the buckets, and computes the next request's time. */
static inline void lab_throttle_begin(struct lab_throttle *t, u32 member, enum lab_direction dir, u64 bytes,
				      u64 now)
{
	lab_throttle_account(t, dir, bytes);
	lab_throttle_pass(t, member, dir, now);
}

/* Returns whether an arriving request begins now; if not, the caller appends it to the member's queue. */
static inline bool lab_throttle_admit(struct lab_throttle *t, u32 member, enum lab_direction dir, u64 bytes,
				      u64 now)
{
	bool waits = lab_throttle_waits(t, lab_throttle_next(t, member, dir), dir, now);

	if (waits || t->way[dir].pending[member]) {
		t->way[dir].pending[member]++;
		return false;
	}
	lab_throttle_begin(t, member, dir, bytes, now);
	return true;
}

static inline enum lab_direction lab_throttle_first(const struct lab_throttle *t)
{
	bool write = t->way[LAB_WRITE].armed;

	if (write && t->way[LAB_READ].armed)
		write = t->way[LAB_WRITE].due < t->way[LAB_READ].due ||
			(t->way[LAB_WRITE].due == t->way[LAB_READ].due &&
			 t->way[LAB_WRITE].order < t->way[LAB_READ].order);
	return write ? LAB_WRITE : LAB_READ;
}

/* Returns the time when the next waiting request begins; LAB_NEVER: none waits. */
static inline u64 lab_throttle_due(const struct lab_throttle *t)
{
	enum lab_direction dir = lab_throttle_first(t);

	return t->way[dir].armed ? t->way[dir].due : LAB_NEVER;
}

/* Returns the member whose first waiting request begins at lab_throttle_due(), and its direction. */
static inline u32 lab_throttle_fire(struct lab_throttle *t, enum lab_direction *dir)
{
	u32 member;

	*dir = lab_throttle_first(t);
	member = t->way[*dir].token;
	t->way[*dir].armed = false;
	if (t->way[*dir].pending[member])
		t->way[*dir].pending[member]--;
	return member;
}

#endif
