/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Timing of a hard disk and of a solid-state disk, in integers.
 *
 * One file for the guest's kernel and for user space: no clock, no lock, no allocation, no data, no
 * floating point. The caller passes the time in nanoseconds, which must never decrease, and the memory.
 *
 *   lab_drive_submit()   a request arrives
 *   lab_drive_next()     returns the time of the next event
 *   lab_drive_wake()     returns a time until which no event needs the caller, so that it sleeps longer
 *   lab_drive_advance()  processes all due events, each with its own time; the call may be late
 *
 * Results depend only on the submissions and their times, not on calls of lab_drive_advance(). Events at
 * the same nanosecond have this order: the arm ends its work; steps of requests, in the order in which
 * they were scheduled; the arm chooses its next work; new requests.
 *
 * Hard disk. The data are on one spiral: lab_drive_spiral(x) is the time that a head needs from byte 0
 * to byte x without leaving the track. A transfer takes the difference of two of its values. The value
 * modulo one revolution is the angle of a byte. So the model has
 *   - rotation: after a seek the head waits until the byte is under it;
 *   - the skip-over rule: a request a short distance ahead costs the time to pass the bytes between;
 *   - sequential requests that cost only their transfer time.
 * Seeks follow Ruemmler and Wilkes, "An introduction to disk drive modeling", IEEE Computer 27(3),
 * 1994: a + b*sqrt(d) below seek_limit, c + e*d above it. d is a fraction of the full stroke, which a disk
 * of any size is mapped onto. Among the oldest `queue_depth` requests the queue chooses the shortest
 * positioning time minus `ageing` times the waiting time (Jacobson and Wilkes, "Disk scheduling algorithms
 * based on rotational position", HPL-CSP-91-7, 1991: ASPTF). A command enters the queue after the
 * controller's overhead, which passes while the arm works. With a queue depth of 1 the controller accepts
 * the next command when the previous one has ended.
 * After a read the drive reads ahead into one segment until the arm is needed elsewhere. The segment keeps
 * LAB_DRIVE_BEHIND bytes behind the last request. Bytes go over the link while they are read from the
 * medium, so the link is free during seeks. Writes are acknowledged when they are in the cache. The arm
 * writes them to the medium when it is idle. If the cache is half full, or a flush or a write waits, it
 * alternates them with reads. It goes in one direction over the disk, then starts again (C-LOOK). After a
 * read it first waits for two revolutions. A flush waits until all writes that were acknowledged before it
 * are on the medium. A write with FUA, or larger than the cache, is on the medium when it is acknowledged.
 *
 * What measured drives do beyond that, each off if its parameter is 0: the newest `lead` waiting commands are not
 * chosen yet, since the drive plans ahead. With `seek_only` it knows no angle, and chooses the shortest seek. A share of the choices takes the oldest command, so that none starves.
 * The cache holds `write_places` pieces of contiguous data at most, which limits how many scattered writes it sorts.
 * The next of them to be written is the one with the shortest positioning time among `write_choice` in C-LOOK's
 * order. A command with data occupies the link for `link_command` too. The first command after `wake_after` without
 * any takes `wake` longer (both kinds of disks).
 *
 * Solid-state disk. The address of a page decides its channel, one of `channels`. Each channel handles one
 * page at a time. Then the link transfers requests one after the other, in order of arrival. After every
 * `gc_bytes` written all channels stop for `gc_stall`. A full cache writes its oldest page to the medium in
 * no time. A flush ends `flush_latency` after the last accepted page.
 */
#ifndef LAB_DRIVE_H
#define LAB_DRIVE_H

#include "throttle.h"

#ifdef __KERNEL__
#include <linux/string.h>
#else
#include <string.h>
typedef uint8_t u8;
typedef int64_t s64;
#endif

#define LAB_DRIVE_SECTOR	512u
#define LAB_DRIVE_PAGE		4096u		/* unit of the cache */
#define LAB_DRIVE_CACHE_MAX	(256ull << 20)
#define LAB_DRIVE_RUN		256		/* most pages that one pass of the arm writes */
#define LAB_DRIVE_BEHIND	(4ull << 20)
#define LAB_DRIVE_ZONES		256
#define LAB_DRIVE_CHANNELS	1024
#define LAB_DRIVE_TIME_MAX	(1ull << 50)	/* largest parameter in nanoseconds: 13 days */
#define LAB_DRIVE_NONE_SLOT	0xffffffffu
#ifndef LAB_DRIVE_REQUESTS
#define LAB_DRIVE_REQUESTS	1024		/* most requests in flight */
#endif

enum lab_drive_kind { LAB_DRIVE_NONE, LAB_DRIVE_HDD, LAB_DRIVE_SSD };
enum lab_drive_op { LAB_DRIVE_READ, LAB_DRIVE_WRITE, LAB_DRIVE_FLUSH };

/* Plain data, stored as little-endian: nanoseconds, bytes, bytes per second. drive.py packs it. */
struct lab_drive_parameters {
	u64 kind;
	u64 seed;		/* decides the platters' angle at time 0 */
	u64 overhead;		/* ns */
	u64 link_rate;
	u64 cache;		/* bytes; 0: none */
	u64 revolution;		/* ns; 0: no rotation */
	u64 seek_a, seek_b;	/* ns */
	s64 seek_c;
	u64 seek_e;
	u64 seek_limit;		/* in 2^-62 of the full stroke */
	u64 write_settle;	/* ns */
	u64 outer_rate, inner_rate;
	u64 zones;
	u64 read_ahead;		/* bytes */
	u64 queue_depth;
	u64 ageing;		/* parts per million */
	u64 read_latency, write_latency, flush_latency;	/* ns */
	u64 channels;
	u64 page;		/* bytes */
	u64 gc_bytes;
	u64 gc_stall;		/* ns */
	/* All 0: none of what measured drives do beyond a data sheet. */
	u64 link_command;	/* ns of the link per command with data */
	u64 lead;		/* commands that came last, and are not chosen yet */
	u64 oldest_share;	/* of the choices, in millionths, that take the oldest command */
	u64 write_places;	/* pieces of dirty data that the cache has at most */
	u64 write_choice;	/* pieces from which the next to be written is chosen */
	u64 wake_after, wake;	/* ns: more overhead of the first command after such a rest */
	u64 seek_only;		/* 1: the queue's choice is by seek, and not by rotation */
};

struct lab_drive;

/* They may not call the drive again, except lab_drive_slot(). */
struct lab_drive_ops {
	/* A request ended at `when`. The caller now reads a read's data, and writes the data of a write
	 * that is not in the cache. Failed: a flush whose data were lost. */
	void (*done)(struct lab_drive *d, void *tag, u64 when, bool failed);
	/*
	 * A write enters the cache, immediately before its `done`: these sectors of this page are volatile
	 * now. `before`: sectors that were volatile in this slot already. While a page is being written to
	 * the medium, a write of it gets a second slot; to undo both, undo the younger one first.
	 */
	void (*dirty)(struct lab_drive *d, void *tag, u64 page, u8 sectors, u8 before, u32 slot);
	/* They are on the medium, or replaced by the write through the cache that ends next. */
	void (*clean)(struct lab_drive *d, u64 page, u8 sectors, u32 slot);
};

struct lab_drive_statistics {
	u64 reads, writes, flushes, read_bytes, written_bytes;
	u64 cache_hits, segment_hits, media_reads, media_writes, destages, skips;
	u64 queue_peak, collections, losses, lost_bytes;
	u64 busy;		/* ns that the arm was busy */
};

/* x * n / d for constant n and d, rounded down, with an error of about 2^-17 */
struct lab_scale {
	u64 factor;
	u32 shift;
};

enum lab_drive_step {
	LAB_STEP_READY,		/* the controller has accepted the command */
	LAB_STEP_DATA,		/* the link has transferred a write's data (hdd) */
	LAB_STEP_DONE
};

struct lab_drive_request {
	void *tag;
	u64 arrival, ready, time;
	u64 offset, length;
	u64 stamp;		/* of a flush: it waits for slots with lower stamps */
	u32 next, previous;
	u8 op, step;
	bool fua, failed;
};

/* Requests by number, in order. */
struct lab_drive_list {
	u32 first, last, count;
};

/* A dirty page of the cache: a node of a treap, sorted by page. If free, `left` is the next free slot. */
struct lab_drive_slot {
	u64 page;
	u64 stamp;		/* number of pages that became dirty earlier */
	u64 oldest;		/* the lowest stamp in this subtree */
	u32 left, right, parent;
	u8 sectors;
};

enum lab_drive_work { LAB_ARM_IDLE, LAB_ARM_SERVES, LAB_ARM_READS_ON, LAB_ARM_DESTAGES };

struct lab_drive {
	const struct lab_drive_ops *ops;
	void *owner;		/* for the caller */
	struct lab_drive_parameters p;
	struct lab_drive_statistics statistics;
	u64 size;
	u64 clock;		/* time of the last event */
	u64 stalled;		/* events that are due earlier happen then */
	u64 link_free;
	struct lab_scale link;

	struct lab_drive_request request[LAB_DRIVE_REQUESTS];
	struct lab_drive_list free, timed, intake, queue, space, flushes;
	bool taken;		/* queue depth 1: a command is being handled */

	struct lab_drive_slot *slot;
	u32 slots, root, unused, used;
	u64 stamps;
	u64 places;		/* pieces of contiguous dirty pages; counted with write_places only */
	u32 writing[LAB_DRIVE_RUN];	/* slots that are being written to the medium */
	u64 writing_first;
	u32 writing_count;

	/* hdd */
	struct lab_scale stroke;
	struct lab_scale zone_scale[LAB_DRIVE_ZONES];
	u64 zone_time[LAB_DRIVE_ZONES + 1], zone_rate[LAB_DRIVE_ZONES];
	u64 zone_bytes;
	u64 angle;
	u64 head, head_spiral, head_time;	/* byte under the head at head_time */
	enum lab_drive_work work;
	u64 arm_time;		/* end of the arm's work or rest */
	u32 served;
	u64 fair;		/* millionths of a choice of the oldest command */
	u64 rested;		/* time of the last answer */
	u64 destage_from, destage_end;
	u64 last_read;
	bool its_turn;		/* a destage is next, while the cache needs space */
	bool undecided;
	struct {		/* [start, end) is in the drive's memory */
		bool valid, filling;
		u64 start, end, limit;
		u64 time;	/* time when `end` was reached */
	} ahead;

	/* ssd */
	u64 *channel;		/* time when each is free */
	u64 gc_written;
};

/* --- arithmetic ---------------------------------------------------------------------------------- */

static inline u64 lab_most(u64 a, u64 b)
{
	return a > b ? a : b;
}

static inline u64 lab_apart(u64 a, u64 b)
{
	return a > b ? a - b : b - a;
}

static inline struct lab_scale lab_scale_of(u64 n, u64 d)
{
	struct lab_scale s = { 0, 0 };

	while ((lab_u128)n << s.shift < (lab_u128)d << 61)
		s.shift++;
	s.factor = lab_divide(((lab_u128)n << s.shift) + d - 1, d);
	return s;
}

static inline u64 lab_scaled(struct lab_scale s, u64 x)
{
	return (u64)((lab_u128)x * s.factor >> s.shift);
}

/* Returns the integer square root. */
static inline u64 lab_root(u64 n)
{
	u64 x, y;

	if (!n)
		return 0;
	x = 1ull << (65 - __builtin_clzll(n)) / 2;
	do {
		y = x;
		x = (y + n / y) / 2;
	} while (x < y);
	return y;
}

/* --- lists of requests --------------------------------------------------------------------------- */

#define LAB_NOBODY	0xffffffffu

static inline void lab_list_insert(struct lab_drive *d, struct lab_drive_list *l, u32 after, u32 r)
{
	u32 next = after == LAB_NOBODY ? l->first : d->request[after].next;

	d->request[r].previous = after;
	d->request[r].next = next;
	*(after == LAB_NOBODY ? &l->first : &d->request[after].next) = r;
	*(next == LAB_NOBODY ? &l->last : &d->request[next].previous) = r;
	l->count++;
}

static inline void lab_list_append(struct lab_drive *d, struct lab_drive_list *l, u32 r)
{
	lab_list_insert(d, l, l->last, r);
}

static inline u32 lab_list_remove(struct lab_drive *d, struct lab_drive_list *l, u32 r)
{
	u32 next = d->request[r].next, previous = d->request[r].previous;

	*(previous == LAB_NOBODY ? &l->first : &d->request[previous].next) = next;
	*(next == LAB_NOBODY ? &l->last : &d->request[next].previous) = previous;
	l->count--;
	return r;
}

/* Schedules a request's next step; steps at the same time run in the order of scheduling. */
static inline void lab_drive_schedule(struct lab_drive *d, u32 r, enum lab_drive_step step, u64 time)
{
	u32 after = d->timed.last;

	d->request[r].step = step;
	d->request[r].time = time;
	while (after != LAB_NOBODY && d->request[after].time > time)
		after = d->request[after].previous;
	lab_list_insert(d, &d->timed, after, r);
}

/* --- dirty pages: a treap whose priorities are hashes of page numbers ------------------------------- */

static inline u64 lab_slot_priority(const struct lab_drive *d, u32 s)
{
	u64 x = d->slot[s].page * 0x9e3779b97f4a7c15ull;

	x = (x ^ x >> 32) * 0xd6e8feb86659fd93ull;
	return x ^ x >> 32;
}

static inline u64 lab_slot_oldest(const struct lab_drive *d, u32 s)
{
	return s == LAB_DRIVE_NONE_SLOT ? LAB_NEVER : d->slot[s].oldest;
}

static inline void lab_slot_update(struct lab_drive *d, u32 s)
{
	struct lab_drive_slot *n = &d->slot[s];
	u64 left = lab_slot_oldest(d, n->left), right = lab_slot_oldest(d, n->right);
	u64 oldest = left < right ? left : right;

	n->oldest = n->stamp < oldest ? n->stamp : oldest;
}

/* Replaces `from` with `to` in the parent of `from`. */
static inline void lab_slot_replace(struct lab_drive *d, u32 from, u32 to)
{
	u32 parent = d->slot[from].parent;

	if (parent == LAB_DRIVE_NONE_SLOT)
		d->root = to;
	else if (d->slot[parent].left == from)
		d->slot[parent].left = to;
	else
		d->slot[parent].right = to;
	if (to != LAB_DRIVE_NONE_SLOT)
		d->slot[to].parent = parent;
}

/* Rotates the child above its parent. */
static inline void lab_slot_rotate(struct lab_drive *d, u32 child)
{
	u32 parent = d->slot[child].parent, inner;

	lab_slot_replace(d, parent, child);
	if (d->slot[parent].left == child) {
		inner = d->slot[child].right;
		d->slot[parent].left = inner;
		d->slot[child].right = parent;
	} else {
		inner = d->slot[child].left;
		d->slot[parent].right = inner;
		d->slot[child].left = parent;
	}
	if (inner != LAB_DRIVE_NONE_SLOT)
		d->slot[inner].parent = parent;
	d->slot[parent].parent = child;
	lab_slot_update(d, parent);
	lab_slot_update(d, child);
}

static inline u32 lab_slot_find(const struct lab_drive *d, u64 page)
{
	u32 s = d->root;

	while (s != LAB_DRIVE_NONE_SLOT && d->slot[s].page != page)
		s = page < d->slot[s].page ? d->slot[s].left : d->slot[s].right;
	return s;
}

/* Counts the pieces of dirty data before a page becomes part of the tree, or after it has left it. */
static inline void lab_slot_places(struct lab_drive *d, u64 page, bool more)
{
	u64 change = 1;

	if (!d->p.write_places)
		return;
	change -= page && lab_slot_find(d, page - 1) != LAB_DRIVE_NONE_SLOT;
	change -= lab_slot_find(d, page + 1) != LAB_DRIVE_NONE_SLOT;
	d->places += more ? change : 0 - change;
}

static inline void lab_slot_insert(struct lab_drive *d, u32 s)
{
	u32 *link = &d->root, parent = LAB_DRIVE_NONE_SLOT;
	struct lab_drive_slot *n = &d->slot[s];

	lab_slot_places(d, n->page, true);
	while (*link != LAB_DRIVE_NONE_SLOT) {
		parent = *link;
		link = n->page < d->slot[parent].page ? &d->slot[parent].left : &d->slot[parent].right;
	}
	*link = s;
	n->parent = parent;
	n->left = n->right = LAB_DRIVE_NONE_SLOT;
	n->oldest = n->stamp;
	while (n->parent != LAB_DRIVE_NONE_SLOT && lab_slot_priority(d, n->parent) < lab_slot_priority(d, s))
		lab_slot_rotate(d, s);
	for (parent = n->parent; parent != LAB_DRIVE_NONE_SLOT; parent = d->slot[parent].parent)
		lab_slot_update(d, parent);
}

static inline void lab_slot_remove(struct lab_drive *d, u32 s)
{
	struct lab_drive_slot *n = &d->slot[s];
	u32 parent;

	while (n->left != LAB_DRIVE_NONE_SLOT && n->right != LAB_DRIVE_NONE_SLOT)
		lab_slot_rotate(d, lab_slot_priority(d, n->left) > lab_slot_priority(d, n->right) ? n->left
												 : n->right);
	parent = n->parent;
	lab_slot_replace(d, s, n->left != LAB_DRIVE_NONE_SLOT ? n->left : n->right);
	for (; parent != LAB_DRIVE_NONE_SLOT; parent = d->slot[parent].parent)
		lab_slot_update(d, parent);
	lab_slot_places(d, n->page, false);
}

/* Returns the first page at or after `from` with a lower stamp than `before`. */
static inline u32 lab_slot_next(const struct lab_drive *d, u64 from, u64 before)
{
	u32 s = d->root, first = LAB_DRIVE_NONE_SLOT, child;

	while (s != LAB_DRIVE_NONE_SLOT) {
		if (d->slot[s].page >= from) {
			first = s;
			s = d->slot[s].left;
		} else {
			s = d->slot[s].right;
		}
	}
	while (first != LAB_DRIVE_NONE_SLOT) {	/* the node, its right subtree, then its parent */
		if (d->slot[first].stamp < before)
			return first;
		s = d->slot[first].right;
		if (lab_slot_oldest(d, s) < before) {
			for (;;) {
				if (lab_slot_oldest(d, d->slot[s].left) < before)
					s = d->slot[s].left;
				else if (d->slot[s].stamp < before)
					return s;
				else
					s = d->slot[s].right;
			}
		}
		do {
			child = first;
			first = d->slot[first].parent;
		} while (first != LAB_DRIVE_NONE_SLOT && d->slot[first].right == child);
	}
	return LAB_DRIVE_NONE_SLOT;
}

static inline void lab_slot_free(struct lab_drive *d, u32 s)
{
	d->slot[s].sectors = 0;
	d->slot[s].left = d->unused;
	d->unused = s;
	d->used--;
}

/* --- the cache ------------------------------------------------------------------------------------ */

static inline u64 lab_pages_first(const struct lab_drive_request *r)
{
	return r->offset / LAB_DRIVE_PAGE;
}

static inline u64 lab_pages_end(const struct lab_drive_request *r)
{
	return (r->offset + r->length + LAB_DRIVE_PAGE - 1) / LAB_DRIVE_PAGE;
}

/* Returns the sectors of this page that a request touches. */
static inline u8 lab_sectors_of(const struct lab_drive_request *r, u64 page)
{
	u64 start = page * LAB_DRIVE_PAGE, from = lab_most(r->offset, start);
	u64 end = r->offset + r->length, to = end < start + LAB_DRIVE_PAGE ? end : start + LAB_DRIVE_PAGE;
	u32 low = (u32)(from - start) / LAB_DRIVE_SECTOR;
	u32 high = (u32)(to - start + LAB_DRIVE_SECTOR - 1) / LAB_DRIVE_SECTOR;

	return (u8)((1u << high) - (1u << low));
}

static inline bool lab_cache_bypassed(const struct lab_drive *d, const struct lab_drive_request *r)
{
	return r->fua || lab_pages_end(r) - lab_pages_first(r) > d->slots;
}

static inline bool lab_cache_holds(const struct lab_drive *d, const struct lab_drive_request *r)
{
	u64 page;

	for (page = lab_pages_first(r); page < lab_pages_end(r); page++) {
		u32 s = lab_slot_find(d, page);
		u8 wanted = lab_sectors_of(r, page);

		if (s == LAB_DRIVE_NONE_SLOT || (d->slot[s].sectors & wanted) != wanted)
			return false;
	}
	return true;
}

/* Returns whether a write is part of dirty data or next to them, or may be another piece. */
static inline bool lab_cache_places(const struct lab_drive *d, const struct lab_drive_request *r)
{
	u64 first = lab_pages_first(r), page;

	if (!d->p.write_places || d->places + (d->writing_count != 0) < d->p.write_places)
		return true;
	for (page = first ? first - 1 : 0; page <= lab_pages_end(r); page++)
		if (lab_slot_find(d, page) != LAB_DRIVE_NONE_SLOT)
			return true;
	return false;
}

static inline bool lab_cache_fits(const struct lab_drive *d, const struct lab_drive_request *r)
{
	u64 page, needed = 0;

	if (!lab_cache_places(d, r))
		return false;
	if (lab_pages_end(r) - lab_pages_first(r) <= d->slots - d->used)
		return true;
	for (page = lab_pages_first(r); page < lab_pages_end(r); page++)
		needed += lab_slot_find(d, page) == LAB_DRIVE_NONE_SLOT;
	return needed <= d->slots - d->used;
}

/* Marks a whole slot as written to the medium. */
static inline void lab_cache_clean(struct lab_drive *d, u32 s)
{
	d->ops->clean(d, d->slot[s].page, d->slot[s].sectors, s);
	lab_slot_free(d, s);
}

/* Marks pages older than `before` as written to the medium. */
static inline void lab_cache_clean_before(struct lab_drive *d, u64 before)
{
	u32 s;

	while ((s = lab_slot_next(d, 0, before)) != LAB_DRIVE_NONE_SLOT) {
		lab_slot_remove(d, s);
		lab_cache_clean(d, s);
	}
}

static inline void lab_cache_take(struct lab_drive *d, const struct lab_drive_request *r)
{
	u64 page;

	for (page = lab_pages_first(r); page < lab_pages_end(r); page++) {
		u32 s = lab_slot_find(d, page);
		u8 sectors = lab_sectors_of(r, page), before;

		if (s == LAB_DRIVE_NONE_SLOT) {
			if (d->unused == LAB_DRIVE_NONE_SLOT)	/* ssd */
				lab_cache_clean_before(d, d->slot[d->root].oldest + 1);
			s = d->unused;
			d->unused = d->slot[s].left;
			d->used++;
			d->slot[s].page = page;
			d->slot[s].stamp = d->stamps++;
			lab_slot_insert(d, s);
		}
		before = d->slot[s].sectors;
		d->slot[s].sectors |= sectors;
		d->ops->dirty(d, r->tag, page, sectors, before, s);
	}
}

/* Marks sectors that a write through the cache has written to the medium as clean. */
static inline void lab_cache_forget(struct lab_drive *d, const struct lab_drive_request *r)
{
	u64 end = lab_pages_end(r);
	u32 s = lab_slot_next(d, lab_pages_first(r), LAB_NEVER);

	while (s != LAB_DRIVE_NONE_SLOT && d->slot[s].page < end) {
		u64 page = d->slot[s].page;
		u8 gone = d->slot[s].sectors & lab_sectors_of(r, page);

		if (gone == d->slot[s].sectors) {
			lab_slot_remove(d, s);
			lab_cache_clean(d, s);
		} else if (gone) {
			d->slot[s].sectors &= (u8)~gone;
			d->ops->clean(d, page, gone, s);
		}
		s = lab_slot_next(d, page + 1, LAB_NEVER);
	}
}

/* --- completion of requests ----------------------------------------------------------------------- */

static inline void lab_drive_take_in(struct lab_drive *d, u32 r, u64 now)
{
	bool rested = d->p.wake && d->free.count == LAB_DRIVE_REQUESTS - 1 && now - d->rested > d->p.wake_after;

	d->taken = d->p.kind == LAB_DRIVE_HDD && d->p.queue_depth == 1;
	lab_drive_schedule(d, r, LAB_STEP_READY, now + d->p.overhead + (rested ? d->p.wake : 0));
}

static inline void lab_drive_end(struct lab_drive *d, u32 r, u64 now)
{
	void *tag = d->request[r].tag;
	bool failed = d->request[r].failed;

	lab_list_append(d, &d->free, r);
	d->rested = now;
	d->taken = false;
	if (d->intake.first != LAB_NOBODY)
		lab_drive_take_in(d, lab_list_remove(d, &d->intake, d->intake.first), now);
	d->ops->done(d, tag, now, failed);
}

/* Returns when the link has transferred these bytes; it transfers requests one after the other. */
static inline u64 lab_drive_over_link(struct lab_drive *d, u64 length, u64 from)
{
	d->link_free = lab_most(d->link_free, from) + d->p.link_command + lab_scaled(d->link, length);
	return d->link_free;
}

/* --- hdd: geometry -------------------------------------------------------------------------------- */

static inline u64 lab_drive_spiral(const struct lab_drive *d, u64 x)
{
	u64 zone = x / d->zone_bytes;

	if (zone >= d->p.zones)
		zone = d->p.zones - 1;
	return d->zone_time[zone] + lab_scaled(d->zone_scale[zone], x - zone * d->zone_bytes);
}

/* Returns the last byte, from `from` to `limit`, that the spiral has reached by `time`. */
static inline u64 lab_drive_reached(const struct lab_drive *d, u64 time, u64 from, u64 limit)
{
	u64 zone = from / d->zone_bytes, x;

	while (zone + 1 < d->p.zones && d->zone_time[zone + 1] <= time)
		zone++;
	if (zone >= d->p.zones)
		zone = d->p.zones - 1;
	x = zone * d->zone_bytes;
	if (time > d->zone_time[zone])
		x += lab_divide((lab_u128)(time - d->zone_time[zone]) * d->zone_rate[zone], LAB_SECOND);
	if (x < from)
		x = from;
	if (x > limit)
		x = limit;
	while (x > from && lab_drive_spiral(d, x) > time)
		x--;
	while (x < limit && lab_drive_spiral(d, x + 1) <= time)
		x++;
	return x;
}

/* Returns the nanoseconds from `t` until the byte at `spiral` is under the head. */
static inline u64 lab_drive_rotation(const struct lab_drive *d, u64 t, u64 spiral)
{
	u64 turn = d->p.revolution, there, here;

	if (!turn)
		return 0;
	there = (spiral + d->angle) % turn;
	here = t % turn;
	return there >= here ? there - here : there + turn - here;
}

static inline u64 lab_drive_seek(const struct lab_drive *d, u64 distance)
{
	u64 fraction = lab_scaled(d->stroke, distance);	/* in 2^-62 */
	s64 seek;

	if (fraction < d->p.seek_limit)
		return d->p.seek_a + (u64)((lab_u128)d->p.seek_b * lab_root(fraction) >> 31);
	seek = d->p.seek_c + (s64)((lab_u128)d->p.seek_e * fraction >> 62);
	return seek > 0 ? (u64)seek : 0;
}

/* Returns the nanoseconds from `t` until byte x is under the head. */
static inline u64 lab_drive_position(const struct lab_drive *d, u64 t, u64 x, bool write, bool *skip)
{
	u64 spiral = lab_drive_spiral(d, x), track = d->p.revolution ? d->p.revolution : 1000000, seek = 0;
	bool ahead = spiral >= d->head_spiral;
	u64 gap = ahead ? spiral - d->head_spiral : d->head_spiral - spiral;

	*skip = ahead && gap <= track && (s64)(d->head_time + gap - t) >= 0;
	if (*skip)	/* it will soon pass under the head, which need not move */
		return d->head_time + gap - t;
	if (gap > track)
		seek = lab_drive_seek(d, lab_apart(x, d->head)) +
		       (write ? d->p.write_settle : 0);
	return seek + lab_drive_rotation(d, t + seek, spiral);
}

static inline void lab_drive_head(struct lab_drive *d, u64 x, u64 time)
{
	d->head = x;
	d->head_spiral = lab_drive_spiral(d, x);
	d->head_time = time;
}

/* --- hdd: reading ahead --------------------------------------------------------------------------- */

static inline u64 lab_ahead_limit(const struct lab_drive *d, u64 end)
{
	return d->p.read_ahead < d->size - end ? end + d->p.read_ahead : d->size;
}

static inline void lab_ahead_fill(struct lab_drive *d, u64 t)
{
	u64 spiral;

	if (!d->ahead.valid || !d->ahead.filling || t <= d->ahead.time)
		return;
	spiral = lab_drive_spiral(d, d->ahead.end);
	d->ahead.end = lab_drive_reached(d, spiral + (t - d->ahead.time), d->ahead.end, d->ahead.limit);
	d->ahead.time += lab_drive_spiral(d, d->ahead.end) - spiral;
	lab_drive_head(d, d->ahead.end, d->ahead.time);
}

static inline void lab_ahead_stop(struct lab_drive *d, u64 t)
{
	lab_ahead_fill(d, t);
	d->ahead.filling = false;
}

/* Reads from the segment. Bytes far behind the read are dropped for new ones. */
static inline void lab_ahead_pass(struct lab_drive *d, const struct lab_drive_request *r, u64 t)
{
	u64 limit = lab_ahead_limit(d, r->offset + r->length);

	if (r->offset > d->ahead.start + LAB_DRIVE_BEHIND)
		d->ahead.start = r->offset - LAB_DRIVE_BEHIND;
	if (limit <= d->ahead.limit)
		return;
	/* Reading ahead continues. If it had stopped, it continues when that place is under the head. */
	if (d->ahead.filling && d->ahead.end == d->ahead.limit && d->ahead.time < t)
		d->ahead.time = t + lab_drive_rotation(d, t, lab_drive_spiral(d, d->ahead.end));
	d->ahead.limit = limit;
}

/* Returns whether the segment has a read's bytes; then the link transfers them. */
static inline bool lab_ahead_holds(struct lab_drive *d, u32 i, u64 t)
{
	struct lab_drive_request *r = &d->request[i];

	lab_ahead_fill(d, t);
	if (!d->ahead.valid || r->offset < d->ahead.start || r->offset + r->length > d->ahead.end)
		return false;
	lab_ahead_pass(d, r, t);
	d->statistics.segment_hits++;
	d->last_read = lab_drive_over_link(d, r->length, t);
	lab_drive_schedule(d, i, LAB_STEP_DONE, d->last_read);
	return true;
}

/* --- hdd: the arm --------------------------------------------------------------------------------- */

static inline bool lab_arm_pressed(const struct lab_drive *d)
{
	return d->flushes.count || d->space.count || d->used > d->slots / 2 || d->places > d->p.write_places / 2;
}

/* Removes the next request from the queue. */
static inline u32 lab_arm_choose(struct lab_drive *d, u64 t, u64 *positioning, bool *skip)
{
	u32 r, best = LAB_NOBODY;
	s64 least = 0;
	u64 seen = 0, from = d->p.queue_depth;

	if (d->p.lead && d->queue.count < from + d->p.lead)
		from = d->queue.count > d->p.lead ? d->queue.count - d->p.lead : 1;
	d->fair += d->p.oldest_share;
	if (d->fair >= 1000000) {
		d->fair -= 1000000;
		from = 1;
	}
	for (r = d->queue.first; r != LAB_NOBODY && seen < from; r = d->request[r].next, seen++) {
		const struct lab_drive_request *q = &d->request[r];
		u64 waited = t - q->arrival, cost, order;
		bool skipping;
		s64 aged;

		cost = lab_drive_position(d, t, q->offset, q->op == LAB_DRIVE_WRITE, &skipping);
		order = d->p.seek_only ? lab_drive_seek(d, lab_apart(q->offset, d->head)) : cost;
		aged = (s64)(order - waited / 1000000 * d->p.ageing - waited % 1000000 * d->p.ageing / 1000000);
		if (best == LAB_NOBODY || aged < least) {
			least = aged;
			best = r;
			*positioning = cost;
			*skip = skipping;
		}
	}
	return lab_list_remove(d, &d->queue, best);
}

static inline void lab_arm_moves(struct lab_drive *d, u64 t, u64 from, u64 end, u64 positioning, bool skip)
{
	lab_ahead_stop(d, t);
	d->arm_time = t + positioning + lab_drive_spiral(d, end) - lab_drive_spiral(d, from);
	d->statistics.busy += d->arm_time - t;
	d->statistics.skips += skip;
}

static inline void lab_arm_serve(struct lab_drive *d, u64 t)
{
	u64 positioning = 0, end, spiral;
	struct lab_drive_request *r;
	bool skip = false;
	u32 i;

	i = lab_arm_choose(d, t, &positioning, &skip);
	r = &d->request[i];
	end = r->offset + r->length;
	d->its_turn = true;
	if (r->op == LAB_DRIVE_READ && lab_ahead_holds(d, i, t))
		return;
	d->served = i;
	if (r->op == LAB_DRIVE_READ && d->ahead.valid && d->ahead.filling && r->offset >= d->ahead.start) {
		spiral = lab_drive_spiral(d, d->ahead.end);
		if (lab_drive_spiral(d, r->offset) <= spiral + d->p.revolution) {
			/* The head will reach it by reading ahead. */
			lab_ahead_pass(d, r, t);
			d->work = LAB_ARM_READS_ON;
			d->arm_time = d->ahead.time + lab_drive_spiral(d, end) - spiral;
			d->statistics.segment_hits++;
			return;
		}
	}
	d->work = LAB_ARM_SERVES;
	lab_arm_moves(d, t, r->offset, end, positioning, skip);
}

/* Returns the piece with the shortest positioning time among `write_choice` pages from slot s on. */
static inline u32 lab_arm_choose_write(struct lab_drive *d, u64 t, u32 s, u64 before)
{
	u64 least = LAB_NEVER, seen, page, cost;
	u32 best = s, first = s;
	bool skip;

	for (seen = 0; seen < d->p.write_choice; seen++) {
		page = d->slot[s].page;
		cost = lab_drive_position(d, t, page * LAB_DRIVE_PAGE, true, &skip);
		if (cost < least) {
			least = cost;
			best = s;
		}
		do {	/* the next piece */
			s = lab_slot_next(d, page + 1, before);
			if (s == LAB_DRIVE_NONE_SLOT || d->slot[s].page != page + 1)
				break;
			page++;
		} while (++seen < d->p.write_choice);
		if (s == LAB_DRIVE_NONE_SLOT)
			s = lab_slot_next(d, 0, before);
		if (s == first)
			break;
	}
	return best;
}

static inline void lab_arm_destage(struct lab_drive *d, u64 t)
{
	u64 before = d->flushes.count ? d->request[d->flushes.first].stamp : LAB_NEVER, page;
	u64 positioning;
	bool skip;
	u32 s;

	/* C-LOOK. While a flush waits, only pages that it waits for. */
	s = lab_slot_next(d, (d->head + LAB_DRIVE_PAGE - 1) / LAB_DRIVE_PAGE, before);
	if (s == LAB_DRIVE_NONE_SLOT)
		s = lab_slot_next(d, 0, before);
	if (d->p.write_choice)
		s = lab_arm_choose_write(d, t, s, before);
	page = d->writing_first = d->slot[s].page;
	d->destage_from = page * LAB_DRIVE_PAGE + (u32)__builtin_ctz(d->slot[s].sectors) * LAB_DRIVE_SECTOR;
	d->writing_count = 0;
	do {
		lab_slot_remove(d, s);
		d->writing[d->writing_count++] = s;
		d->destage_end = (page + 1) * LAB_DRIVE_PAGE -
				 ((u32)__builtin_clz(d->slot[s].sectors) - 24) * LAB_DRIVE_SECTOR;
		s = lab_slot_find(d, ++page);
	} while (s != LAB_DRIVE_NONE_SLOT && d->slot[s].stamp < before && d->writing_count < LAB_DRIVE_RUN);
	d->statistics.destages++;
	d->work = LAB_ARM_DESTAGES;
	positioning = lab_drive_position(d, t, d->destage_from, true, &skip);
	lab_arm_moves(d, t, d->destage_from, d->destage_end, positioning, skip);
}

static inline void lab_arm_decide(struct lab_drive *d, u64 t)
{
	bool press;
	u64 rest;

	while (d->work == LAB_ARM_IDLE) {
		d->arm_time = LAB_NEVER;
		lab_ahead_fill(d, t);
		press = d->root != LAB_DRIVE_NONE_SLOT && lab_arm_pressed(d);
		if (d->queue.count && !(press && d->its_turn)) {
			lab_arm_serve(d, t);
			continue;
		}
		if (d->root == LAB_DRIVE_NONE_SLOT)
			return;
		/* The head stays near recent reads, so that the next read needs no seek back. */
		rest = d->last_read + 2 * d->p.revolution;
		if (!press && d->last_read && t < rest) {
			d->arm_time = rest;
			return;
		}
		d->its_turn = false;
		lab_arm_destage(d, t);
	}
}

/* A waiting write may now fit in the cache. */
static inline void lab_drive_room(struct lab_drive *d, u64 t)
{
	u32 r;

	while ((r = d->space.first) != LAB_NOBODY && lab_cache_fits(d, &d->request[r])) {
		lab_list_remove(d, &d->space, r);
		lab_cache_take(d, &d->request[r]);
		lab_drive_end(d, r, t);
	}
}

/* Pages have become clean: flushes and writes that wait for space may continue. */
static inline void lab_drive_cleaned(struct lab_drive *d, u64 t)
{
	u32 r;

	while ((r = d->flushes.first) != LAB_NOBODY && lab_slot_oldest(d, d->root) >= d->request[r].stamp) {
		lab_list_remove(d, &d->flushes, r);
		lab_drive_end(d, r, t);
	}
	lab_drive_room(d, t);
}

static inline void lab_arm_served(struct lab_drive *d, u64 t)
{
	u64 at = d->arm_time, media, from;
	struct lab_drive_request *r = &d->request[d->served];
	u64 end = r->offset + r->length;
	bool on = d->work == LAB_ARM_READS_ON;
	u32 i = d->served;

	d->work = LAB_ARM_IDLE;
	if (r->op == LAB_DRIVE_WRITE) {
		lab_drive_head(d, end, at);
		d->statistics.media_writes++;
		d->ahead.valid = false;
		lab_cache_forget(d, r);
		lab_drive_end(d, i, t);
		lab_drive_cleaned(d, t);
		return;
	}
	if (on) {
		lab_ahead_fill(d, at);
	} else {
		d->statistics.media_reads++;
		d->ahead.valid = d->ahead.filling = d->p.read_ahead > 0;
		d->ahead.start = r->offset;
		d->ahead.end = end;
		d->ahead.limit = lab_ahead_limit(d, end);
		d->ahead.time = at;
	}
	if (!d->ahead.valid || !on)
		lab_drive_head(d, end, at);
	/* Its bytes went over the link while they were read from the medium. */
	media = lab_drive_spiral(d, end) - lab_drive_spiral(d, r->offset);
	from = lab_most(r->ready, at > media ? at - media : 0);
	d->last_read = lab_most(t, lab_drive_over_link(d, r->length, from));
	lab_drive_schedule(d, i, LAB_STEP_DONE, d->last_read);
}

static inline void lab_arm_destaged(struct lab_drive *d, u64 t)
{
	u32 n;

	d->work = LAB_ARM_IDLE;
	lab_drive_head(d, d->destage_end, d->arm_time);
	if (d->ahead.valid && d->destage_from < d->ahead.end && d->destage_end > d->ahead.start)
		d->ahead.valid = false;
	for (n = 0; n < d->writing_count; n++)
		lab_cache_clean(d, d->writing[n]);
	d->writing_count = 0;
	lab_drive_cleaned(d, t);
}

static inline void lab_arm_ends(struct lab_drive *d, u64 t)
{
	if (d->work == LAB_ARM_DESTAGES)
		lab_arm_destaged(d, t);
	else if (d->work != LAB_ARM_IDLE)
		lab_arm_served(d, t);
	d->arm_time = LAB_NEVER;
}

/* --- hdd: steps of requests ----------------------------------------------------------------------- */

static inline void lab_hdd_queue(struct lab_drive *d, u32 r)
{
	lab_list_append(d, &d->queue, r);
	d->statistics.queue_peak = lab_most(d->statistics.queue_peak, d->queue.count);
}

static inline void lab_hdd_ready(struct lab_drive *d, u32 i, u64 t)
{
	struct lab_drive_request *r = &d->request[i];

	r->ready = t;
	if (r->op == LAB_DRIVE_WRITE) {
		lab_drive_schedule(d, i, LAB_STEP_DATA, lab_drive_over_link(d, r->length, t));
	} else if (r->op == LAB_DRIVE_FLUSH) {
		r->stamp = d->stamps;
		if (d->used)
			lab_list_append(d, &d->flushes, i);
		else
			lab_drive_end(d, i, t);
	} else if (lab_cache_holds(d, r)) {
		d->statistics.cache_hits++;
		lab_drive_schedule(d, i, LAB_STEP_DONE, lab_drive_over_link(d, r->length, t));
	} else if (!lab_ahead_holds(d, i, t)) {
		lab_hdd_queue(d, i);
	}
}

static inline void lab_hdd_data(struct lab_drive *d, u32 i, u64 t)
{
	struct lab_drive_request *r = &d->request[i];

	if (lab_cache_bypassed(d, r)) {
		lab_hdd_queue(d, i);
		return;
	}
	if (d->ahead.valid && r->offset < d->ahead.end && r->offset + r->length > d->ahead.start) {
		lab_ahead_fill(d, t);
		d->ahead.valid = false;
	}
	lab_list_append(d, &d->space, i);
	lab_drive_room(d, t);
}

/* --- ssd ------------------------------------------------------------------------------------------ */

static inline u64 lab_ssd_channels(struct lab_drive *d, const struct lab_drive_request *r, u64 t, u64 latency)
{
	u64 page, end = t;

	for (page = r->offset / d->p.page; page * d->p.page < r->offset + r->length; page++) {
		u64 *channel = &d->channel[page % d->p.channels];

		*channel = lab_most(*channel, t) + latency;
		end = lab_most(end, *channel);
	}
	return end;
}

static inline void lab_ssd_collect(struct lab_drive *d, u64 length, u64 t)
{
	u64 c;

	d->gc_written += length;
	while (d->p.gc_bytes && d->gc_written >= d->p.gc_bytes) {
		d->gc_written -= d->p.gc_bytes;
		d->statistics.collections++;
		for (c = 0; c < d->p.channels; c++)
			d->channel[c] = lab_most(d->channel[c], t) + d->p.gc_stall;
	}
}

static inline void lab_ssd_ready(struct lab_drive *d, u32 i, u64 t)
{
	struct lab_drive_request *r = &d->request[i];
	u64 c, end = t;

	r->ready = t;
	if (r->op == LAB_DRIVE_FLUSH) {
		r->stamp = d->stamps;
		for (c = 0; c < d->p.channels; c++)
			end = lab_most(end, d->channel[c]);
		end += d->p.flush_latency;
	} else if (r->op == LAB_DRIVE_READ) {
		end = lab_drive_over_link(d, r->length, lab_ssd_channels(d, r, t, d->p.read_latency));
	} else {
		end = lab_drive_over_link(d, r->length, lab_ssd_channels(d, r, t, d->p.write_latency));
		end += r->fua ? d->p.flush_latency : 0;
		lab_ssd_collect(d, r->length, end);
	}
	lab_drive_schedule(d, i, LAB_STEP_DONE, end);
}

static inline void lab_ssd_done(struct lab_drive *d, u32 i, u64 t)
{
	struct lab_drive_request *r = &d->request[i];

	if (r->op == LAB_DRIVE_FLUSH)
		lab_cache_clean_before(d, r->stamp);
	else if (r->op == LAB_DRIVE_WRITE && lab_cache_bypassed(d, r))
		lab_cache_forget(d, r);
	else if (r->op == LAB_DRIVE_WRITE)
		lab_cache_take(d, r);
	lab_drive_end(d, i, t);
}

/* --- for the caller ------------------------------------------------------------------------------- */

static inline bool lab_drive_valid(const struct lab_drive_parameters *p)
{
	const u64 times[] = { p->overhead, p->revolution, p->seek_a, p->seek_b, p->seek_e, p->write_settle,
			      p->read_latency, p->write_latency, p->flush_latency, p->gc_stall,
			      p->link_command, p->wake_after, p->wake };
	u32 i;

	for (i = 0; i < sizeof(times) / sizeof(*times); i++)
		if (times[i] > LAB_DRIVE_TIME_MAX)
			return false;
	if (p->oldest_share > 1000000 || p->lead > LAB_DRIVE_REQUESTS || p->write_choice > LAB_DRIVE_RUN ||
	    p->seek_only > 1)
		return false;
	if (p->link_rate < 1 || p->link_rate > LAB_RATE_MAX || p->cache > LAB_DRIVE_CACHE_MAX)
		return false;
	if (p->kind == LAB_DRIVE_SSD)
		return p->channels >= 1 && p->channels <= LAB_DRIVE_CHANNELS && p->page >= LAB_DRIVE_SECTOR;
	return p->kind == LAB_DRIVE_HDD && p->outer_rate >= 1 && p->outer_rate <= LAB_RATE_MAX &&
	       p->inner_rate >= 1 && p->inner_rate <= LAB_RATE_MAX && p->zones >= 1 &&
	       p->zones <= LAB_DRIVE_ZONES && p->queue_depth >= 1 && p->ageing <= 1000000 &&
	       p->seek_limit <= 1ull << 62 && p->seek_c <= (s64)LAB_DRIVE_TIME_MAX &&
	       p->seek_c >= -(s64)LAB_DRIVE_TIME_MAX;
}

/* Returns the bytes of zeroed memory that the caller must allocate; 0: parameters out of range. */
static inline u64 lab_drive_bytes(const struct lab_drive_parameters *p)
{
	if (!lab_drive_valid(p))
		return 0;
	return sizeof(struct lab_drive) + p->cache / LAB_DRIVE_PAGE * sizeof(struct lab_drive_slot) +
	       (p->kind == LAB_DRIVE_SSD ? p->channels * sizeof(u64) : 0);
}

/* Initialises a drive. False: parameters or size out of range. */
static inline bool lab_drive_init(struct lab_drive *d, const struct lab_drive_parameters *p, u64 size,
				  const struct lab_drive_ops *ops, u64 now)
{
	struct lab_drive_list none = { LAB_NOBODY, LAB_NOBODY, 0 };
	u64 slowest = p->link_rate, z;
	u32 i;

	if (!lab_drive_valid(p) || size < LAB_DRIVE_SECTOR || size > 1ull << 60)
		return false;
	memset(d, 0, (size_t)lab_drive_bytes(p));
	d->p = *p;
	d->ops = ops;
	d->size = size;
	d->clock = now;
	d->link = lab_scale_of(LAB_SECOND, p->link_rate);
	d->arm_time = LAB_NEVER;
	d->rested = now;
	d->free = d->timed = d->intake = d->queue = d->space = d->flushes = none;
	for (i = 0; i < LAB_DRIVE_REQUESTS; i++)
		lab_list_append(d, &d->free, i);
	d->slot = (struct lab_drive_slot *)(d + 1);
	d->slots = (u32)(p->cache / LAB_DRIVE_PAGE);
	d->root = d->unused = LAB_DRIVE_NONE_SLOT;
	d->used = d->slots;
	for (i = d->slots; i-- > 0;)
		lab_slot_free(d, i);
	d->channel = (u64 *)(d->slot + d->slots);
	if (p->kind == LAB_DRIVE_HDD && p->outer_rate < slowest)
		slowest = p->outer_rate;
	if (p->kind == LAB_DRIVE_HDD && p->inner_rate < slowest)
		slowest = p->inner_rate;
	if ((lab_u128)size * LAB_SECOND >= (lab_u128)slowest << 61)
		return false;	/* the whole disk would take 70 years */
	if (p->kind != LAB_DRIVE_HDD)
		return true;
	/* By the golden ratio, so that all angles differ. */
	d->angle = (u64)((lab_u128)(p->seed * 0x9e3779b97f4a7c15ull) * p->revolution >> 64);
	d->stroke = lab_scale_of(1ull << 62, size);
	d->zone_bytes = (size + p->zones - 1) / p->zones;
	for (z = 0; z < p->zones; z++) {
		u64 last = p->zones > 1 ? p->zones - 1 : 1;

		d->zone_rate[z] = (u64)((s64)p->outer_rate + ((s64)p->inner_rate - (s64)p->outer_rate) *
								     (s64)z / (s64)last);
		d->zone_scale[z] = lab_scale_of(LAB_SECOND, d->zone_rate[z]);
		d->zone_time[z + 1] = d->zone_time[z] + lab_scaled(d->zone_scale[z], d->zone_bytes);
	}
	d->head_time = now + lab_drive_rotation(d, now, 0) - p->revolution;	/* the latest pass of byte 0 */
	return true;
}

static inline u64 lab_drive_due(const struct lab_drive *d)
{
	u64 step = d->timed.first == LAB_NOBODY ? LAB_NEVER : d->request[d->timed.first].time;

	return step < d->arm_time ? step : d->arm_time;
}

/* Returns the time of the next event; LAB_NEVER: none. */
static inline u64 lab_drive_next(const struct lab_drive *d)
{
	u64 due = lab_drive_due(d);

	return due == LAB_NEVER ? due : lab_most(due, d->stalled);
}

/* Returns a seek that is no longer than the arm's next one, if that is to x and it stands still or reads ahead. */
static inline u64 lab_drive_least_seek(const struct lab_drive *d, u64 x)
{
	u64 end = d->ahead.valid ? lab_most(d->head, d->ahead.limit) : d->head;
	u64 near = x < d->head ? d->head - x : x > end ? x - end : 0, far = x < d->head ? end - x : x - d->head;

	if (d->work != LAB_ARM_IDLE || !near || lab_scaled(d->stroke, far) >= d->p.seek_limit)
		return 0;
	return lab_drive_seek(d, near);
}

/*
 * Returns a time before which a command that becomes ready cannot end. With dirty pages a flush waits for
 * what the arm does, at least. A command with data needs the link. A read that neither the cache nor the
 * segment can have, and that the head does not reach by reading ahead, also waits until its first byte
 * passes under the head.
 */
static inline u64 lab_drive_soonest(const struct lab_drive *d, const struct lab_drive_request *r)
{
	u64 track = d->p.revolution ? d->p.revolution : 1000000, from = d->head_spiral, to = from, t = r->time;
	u64 first, last, over;

	if (r->step != LAB_STEP_READY || d->p.kind != LAB_DRIVE_HDD)
		return t;
	if (r->op == LAB_DRIVE_FLUSH)
		return d->used && d->work != LAB_ARM_IDLE ? lab_most(t, d->arm_time) : t;
	over = lab_most(d->link_free, t) + lab_scaled(d->link, r->length);
	if (r->op == LAB_DRIVE_WRITE || d->used)
		return over;
	if (d->ahead.valid) {
		first = lab_drive_spiral(d, d->ahead.start);
		from = first < from ? first : from;
		to = lab_most(to, lab_drive_spiral(d, d->ahead.limit));
	}
	first = lab_drive_spiral(d, r->offset);
	last = lab_drive_spiral(d, r->offset + r->length);
	if (last + track >= from && first <= to + track)
		return over;
	t += lab_drive_least_seek(d, r->offset);
	return lab_most(over, t + lab_drive_rotation(d, t, first) + last - first);
}

/*
 * Returns a time before which no request ends, no page becomes volatile or reaches the medium, if no request
 * is added. Events until then can be processed late. LAB_NEVER: there is none. Call it after
 * lab_drive_advance().
 */
static inline u64 lab_drive_wake(const struct lab_drive *d)
{
	u64 due = d->arm_time, soonest;
	u32 r;

	for (r = d->timed.first; r != LAB_NOBODY && d->request[r].time < due; r = d->request[r].next) {
		soonest = lab_drive_soonest(d, &d->request[r]);
		due = soonest < due ? soonest : due;
	}
	return due == LAB_NEVER ? due : lab_most(due, d->stalled);
}

static inline void lab_drive_step(struct lab_drive *d, u32 r, u64 t)
{
	bool hdd = d->p.kind == LAB_DRIVE_HDD;

	switch (d->request[r].step) {
	case LAB_STEP_READY:
		hdd ? lab_hdd_ready(d, r, t) : lab_ssd_ready(d, r, t);
		break;
	case LAB_STEP_DATA:
		lab_hdd_data(d, r, t);
		break;
	case LAB_STEP_DONE:
		hdd ? lab_drive_end(d, r, t) : lab_ssd_done(d, r, t);
		break;
	}
}

/* Processes all events that are due up to `now`, each with its own time. */
static inline void lab_drive_advance(struct lab_drive *d, u64 now)
{
	for (;;) {
		u64 due = lab_drive_due(d), t = lab_drive_next(d);

		if (d->undecided && t > d->clock) {
			d->undecided = false;
			lab_arm_decide(d, d->clock);
			continue;
		}
		if (t > now || t == LAB_NEVER)
			return;
		d->clock = lab_most(d->clock, t);
		if (d->arm_time == due)
			lab_arm_ends(d, d->clock);
		else
			lab_drive_step(d, lab_list_remove(d, &d->timed, d->timed.first), d->clock);
		d->undecided = d->p.kind == LAB_DRIVE_HDD;
	}
}

/*
 * Adds a request: whole sectors within the disk; a flush has neither offset nor length. First processes
 * events up to `now`. False: LAB_DRIVE_REQUESTS are in flight, and this request was not accepted.
 */
static inline bool lab_drive_submit(struct lab_drive *d, void *tag, enum lab_drive_op op, bool fua,
				    u64 offset, u64 length, u64 now)
{
	u32 r;

	lab_drive_advance(d, now);
	now = lab_most(now, d->clock);
	r = d->free.first;
	if (r == LAB_NOBODY)
		return false;
	lab_list_remove(d, &d->free, r);
	d->request[r] = (struct lab_drive_request){ .tag = tag, .arrival = now, .ready = now, .offset = offset,
						    .length = length, .op = op, .fua = fua,
						    .stamp = op == LAB_DRIVE_FLUSH ? d->stamps : 0 };
	d->statistics.reads += op == LAB_DRIVE_READ;
	d->statistics.writes += op == LAB_DRIVE_WRITE;
	d->statistics.flushes += op == LAB_DRIVE_FLUSH;
	*(op == LAB_DRIVE_READ ? &d->statistics.read_bytes : &d->statistics.written_bytes) += length;
	if (d->taken)
		lab_list_append(d, &d->intake, r);
	else
		lab_drive_take_in(d, r, now);
	return true;
}

/* Delays all events until `until`; LAB_NEVER: until a call with 0. */
static inline void lab_drive_stall(struct lab_drive *d, u64 until, u64 now)
{
	lab_drive_advance(d, now);
	d->stalled = lab_most(until, now);
}

/* Drops the cache; returns the lost bytes. `clean` is not called for them; flushes that wait for them fail. */
static inline u64 lab_drive_lose(struct lab_drive *d, u64 now)
{
	u64 oldest = LAB_NEVER, bytes = 0;
	u32 n, r, s;

	lab_drive_advance(d, now);
	now = lab_most(now, d->clock);
	for (n = 0; n < d->slots; n++)
		if (d->slot[n].sectors) {
			for (s = d->slot[n].sectors; s; s &= s - 1)
				bytes += LAB_DRIVE_SECTOR;
			if (d->slot[n].stamp < oldest)
				oldest = d->slot[n].stamp;
		}
	d->unused = d->root = LAB_DRIVE_NONE_SLOT;
	d->places = 0;
	d->used = d->slots;
	for (n = d->slots; n-- > 0;)
		lab_slot_free(d, n);
	d->writing_count = 0;
	d->ahead.valid = false;
	d->statistics.losses++;
	d->statistics.lost_bytes += bytes;
	for (r = d->timed.first; r != LAB_NOBODY; r = d->request[r].next)
		d->request[r].failed |= oldest < d->request[r].stamp;
	for (r = d->intake.first; r != LAB_NOBODY; r = d->request[r].next)
		d->request[r].failed |= oldest < d->request[r].stamp;
	while ((r = d->flushes.first) != LAB_NOBODY) {
		lab_list_remove(d, &d->flushes, r);
		d->request[r].failed |= oldest < d->request[r].stamp;
		lab_drive_schedule(d, r, LAB_STEP_DONE, now);
	}
	while ((r = d->space.first) != LAB_NOBODY) {
		lab_list_remove(d, &d->space, r);
		lab_drive_schedule(d, r, LAB_STEP_DATA, now);
	}
	return bytes;
}

/* Writes the whole cache to the medium in no time, for an orderly end. */
static inline void lab_drive_empty(struct lab_drive *d)
{
	u32 n;

	for (n = 0; n < d->writing_count; n++)
		lab_cache_clean(d, d->writing[n]);
	d->writing_count = 0;
	lab_cache_clean_before(d, LAB_NEVER);
}

/* Returns a page's slot and its sectors; LAB_DRIVE_NONE_SLOT: none. `old`: the slot being written. */
static inline u32 lab_drive_slot(const struct lab_drive *d, u64 page, bool old, u8 *sectors)
{
	u32 s = LAB_DRIVE_NONE_SLOT;

	if (!old)
		s = lab_slot_find(d, page);
	else if (page >= d->writing_first && page - d->writing_first < d->writing_count)
		s = d->writing[page - d->writing_first];
	*sectors = s == LAB_DRIVE_NONE_SLOT ? 0 : d->slot[s].sectors;
	return s;
}

/* Returns the bytes of the dirty pages. */
static inline u64 lab_drive_dirty(const struct lab_drive *d)
{
	return (u64)d->used * LAB_DRIVE_PAGE;
}

#endif
