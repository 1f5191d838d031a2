// SPDX-License-Identifier: GPL-2.0
/*
 * Disks for a guest in virtual time. Contents are in a memory region that the host shares as an NVDIMM of
 * QEMU (region.h), so no request waits for the host. throttle.h or drive.h decides the time of a request, and
 * a timer of the guest completes it.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#ifndef CONFIG_UML
#include <linux/acpi.h>
#endif
#include <linux/blk-mq.h>
#include <linux/console.h>
#include <linux/highmem.h>
#include <linux/hrtimer.h>
#include <linux/io.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/panic_notifier.h>
#include <linux/reboot.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include <linux/vmalloc.h>

#include "map.h"

#ifdef CONFIG_UML	/* the driver is part of the kernel */
#include <linux/pm.h>
#include "lab_native.h"
#define random_fops lab_random_fops
#endif

struct lab_disk;

/* Disks that share limits. A disk with its own limits has a group with one member. */
struct lab_group {
	struct lab_throttle throttle;
	struct hrtimer timer;
	u64 armed;
	struct lab_disk *members[LAB_MEMBERS];
};

struct lab_disk {
	struct lab_map m;
	struct gendisk *disk;	/* NULL: not attached */
	struct blk_mq_tag_set tags;
	struct lab_group *group;	/* NULL: unlimited */
	u32 member;
	u32 busy;	/* requests in the driver, at most `depth` */
	u32 depth;
	bool starved;	/* the scheduler has further requests */
	bool gone;
	struct list_head waiting[LAB_DIRECTIONS];
	struct lab_drive *drive;	/* NULL: requests wait only for the group */
	struct hrtimer timer;
	u64 armed;
	struct list_head ended;		/* requests that the drive has completed */
};

struct lab_command {
	struct list_head node;
	u64 arrived;
	blk_status_t status;
	/* Position from which its data must still be copied. */
	struct bio *bio;
	struct bvec_iter at;
	u64 position;
};

static u64 region_size;
static struct lab_disk disks[LAB_DISKS];
static bool trace;	/* log drives' requests and their completion in the kernel's log */
module_param(trace, bool, 0600);
static u32 known;	/* number of known disks; the table may have more (stop_set) */
/* First the groups that entries share, by number from 1, then each disk's own group. */
static struct lab_group *groups[LAB_DISKS + 1 + LAB_DISKS];

/*
 * One lock for block map, throttles and queues. A guest in virtual time has one CPU. The lock is held for the
 * copy of one block at most, so timers are at most some microseconds late. Requests that a late timer releases
 * begin at the time when the timer was due.
 */
static DEFINE_SPINLOCK(lab_lock);
static DEFINE_MUTEX(attach_lock);

/* --- contents ------------------------------------------------------------------------------------ */

/* Handles discards and zeros alike: zeros occupy no block. */
static blk_status_t lab_zero(struct lab_disk *d, u64 position, u64 size)
{
	u64 end = position + size, n;
	unsigned long flags;

	for (; position < end; position += n) {
		u64 index = position >> LAB_BLOCK_SHIFT;
		u32 offset = position & (LAB_BLOCK - 1);
		u32 entry;

		if (!offset && !test_bit(index >> LAB_MAP_SHIFT, d->m.present)) {
			n = ((index | ((1 << LAB_MAP_SHIFT) - 1)) + 1 - index) << LAB_BLOCK_SHIFT;
			continue;
		}
		n = min_t(u64, end - position, LAB_BLOCK - offset);
		spin_lock_irqsave(&lab_lock, flags);
		entry = lab_block_of(&d->m, index);
		if (entry && n == LAB_BLOCK)
			lab_block_free(&d->m, index);
		else if (entry)
			lab_clear(lab_block_data(entry) + offset, n);
		spin_unlock_irqrestore(&lab_lock, flags);
	}
	return BLK_STS_OK;
}

static struct lab_command *lab_command_begin(struct request *rq)
{
	struct lab_command *c = blk_mq_rq_to_pdu(rq);

	c->status = BLK_STS_OK;
	c->bio = rq->bio;
	if (c->bio)
		c->at = c->bio->bi_iter;
	c->position = blk_rq_pos(rq) << SECTOR_SHIFT;
	return c;
}

/* Copies the next bytes of a request. Called with the lock. */
static void lab_copy(struct lab_disk *d, struct lab_command *c, u64 size)
{
	bool write = rq_data_dir(blk_mq_rq_from_pdu(c)) == WRITE;

	while (size && !c->status) {
		struct bio_vec vec;
		void *data;
		u32 n;

		if (!c->at.bi_size) {
			c->bio = c->bio->bi_next;
			c->at = c->bio->bi_iter;
		}
		vec = bio_iter_iovec(c->bio, c->at);
		n = min_t(u64, min_t(u64, vec.bv_len, size), LAB_BLOCK - (c->position & (LAB_BLOCK - 1)));
		data = bvec_kmap_local(&vec);
		if (write)
			c->status = lab_write(&d->m, c->position, data, n) ? BLK_STS_OK : BLK_STS_NOSPC;
		else
			lab_read(&d->m, c->position, data, n);
		kunmap_local(data);
		bio_advance_iter_single(c->bio, &c->at, n);
		c->position += n;
		size -= n;
	}
}

/* Returns the end of a request's data. */
static u64 lab_end(struct request *rq)
{
	return (blk_rq_pos(rq) << SECTOR_SHIFT) + blk_rq_bytes(rq);
}

static blk_status_t lab_transfer(struct lab_disk *d, struct request *rq)
{
	struct lab_command *c = lab_command_begin(rq);
	unsigned long flags;

	while (c->position < lab_end(rq) && !c->status) {
		spin_lock_irqsave(&lab_lock, flags);
		lab_copy(d, c, min_t(u64, lab_end(rq) - c->position, PAGE_SIZE));
		spin_unlock_irqrestore(&lab_lock, flags);
	}
	return c->status;
}

/* --- requests ------------------------------------------------------------------------------------ */

static bool lab_touches(const struct lab_bad *bad, u32 which, struct request *rq)
{
	u64 start = blk_rq_pos(rq) << SECTOR_SHIFT;

	return bad->flags & which && start < bad->offset + bad->length && bad->offset < lab_end(rq);
}

/* Returns whether this request must fail, and counts the failure. Called with the lock. */
static bool lab_is_bad(struct lab_disk *d, struct request *rq)
{
	u32 which = op_is_write(req_op(rq)) ? LAB_BAD_WRITE : LAB_BAD_READ;
	u32 i;

	for (i = 0; i < min_t(u32, READ_ONCE(d->m.entry->bads), LAB_BAD_RANGES); i++) {
		struct lab_bad *bad = &d->m.entry->bad[i];

		if (!lab_touches(bad, which, rq))
			continue;
		if (bad->argument && !--bad->argument)
			bad->flags = 0;
		return true;
	}
	return false;
}

/* Corrupts the bytes read from ranges with LAB_BAD_DATA, except bytes from the cache. */
static void lab_misread(struct lab_disk *d, struct request *rq)
{
	struct req_iterator iterator;
	u64 at, sector = LAB_NEVER;
	bool cached = false;
	struct bio_vec vec;
	u32 i, n;

	for (i = 0; i < min_t(u32, READ_ONCE(d->m.entry->bads), LAB_BAD_RANGES); i++) {
		struct lab_bad *bad = &d->m.entry->bad[i];

		if (!lab_touches(bad, LAB_BAD_DATA, rq))
			continue;
		at = blk_rq_pos(rq) << SECTOR_SHIFT;
		rq_for_each_segment(vec, rq, iterator) {
			u8 *data = bvec_kmap_local(&vec);

			for (n = 0; n < vec.bv_len; n++, at++) {
				if (at < bad->offset || at >= bad->offset + bad->length)
					continue;
				if (sector != at >> SECTOR_SHIFT) {
					sector = at >> SECTOR_SHIFT;
					cached = lab_undo_of(&d->m, sector);
				}
				if (!cached)
					data[n] ^= bad->argument;
			}
			kunmap_local(data);
		}
	}
}

static int lab_op_of(struct request *rq)
{
	switch (req_op(rq)) {
	case REQ_OP_READ:
		return LAB_OP_READ;
	case REQ_OP_WRITE:
		return LAB_OP_WRITE;
	case REQ_OP_FLUSH:
		return LAB_OP_FLUSH;
	case REQ_OP_DISCARD:
		return LAB_OP_DISCARD;
	case REQ_OP_WRITE_ZEROES:
		return LAB_OP_ZERO;
	default:
		return -1;
	}
}

static void lab_end_request(struct lab_disk *d, struct request *rq, blk_status_t status)
{
	struct lab_statistics *statistics = &d->m.entry->statistics;
	int op = lab_op_of(rq);
	unsigned long flags;
	bool starved;

	spin_lock_irqsave(&lab_lock, flags);
	d->busy--;
	starved = d->starved;
	d->starved = false;
	if (status)
		statistics->errors++;
	if (op >= 0) {
		statistics->requests[op]++;
		statistics->bytes[op] += blk_rq_bytes(rq);
		statistics->fua += op == LAB_OP_WRITE && rq->cmd_flags & REQ_FUA;
	}
	state->clock = ktime_get_ns();
	spin_unlock_irqrestore(&lab_lock, flags);
	blk_mq_end_request(rq, status);
	if (starved)
		blk_mq_run_hw_queues(d->disk->queue, true);
}

/* Executes a request and completes it. Its data are in the region before it is completed. */
static void lab_finish(struct lab_disk *d, struct request *rq)
{
	blk_status_t status = BLK_STS_OK;
	int op = lab_op_of(rq);
	unsigned long flags;
	bool fails;

	spin_lock_irqsave(&lab_lock, flags);
	fails = d->gone || (op >= 0 && op != LAB_OP_FLUSH && lab_is_bad(d, rq));
	spin_unlock_irqrestore(&lab_lock, flags);
	if (op < 0)
		status = BLK_STS_NOTSUPP;
	else if (fails)
		status = BLK_STS_IOERR;
	else if (op == LAB_OP_READ || op == LAB_OP_WRITE)
		status = lab_transfer(d, rq);
	else if (op != LAB_OP_FLUSH)
		status = lab_zero(d, blk_rq_pos(rq) << SECTOR_SHIFT, blk_rq_bytes(rq));
	if (op == LAB_OP_READ && !status)
		lab_misread(d, rq);
	lab_end_request(d, rq, status);
}

static void lab_finish_all(struct list_head *begun)
{
	struct lab_command *c, *next;

	list_for_each_entry_safe(c, next, begun, node) {
		struct request *rq = blk_mq_rq_from_pdu(c);

		list_del_init(&c->node);
		lab_finish(rq->q->queuedata, rq);
	}
}

/* Collects the requests that begin up to now, each with its own start time even if this call is late. */
static void lab_release(struct lab_group *g, u64 now, struct list_head *begun)
{
	u64 due;

	while ((due = lab_throttle_due(&g->throttle)) <= now) {
		enum lab_direction dir;
		u32 member = lab_throttle_fire(&g->throttle, &dir);
		struct list_head *waiting = &g->members[member]->waiting[dir];
		struct lab_command *c = list_first_entry_or_null(waiting, struct lab_command, node);

		if (!c) {	/* the disk was detached */
			lab_throttle_pass(&g->throttle, member, dir, due);
			continue;
		}
		list_move_tail(&c->node, begun);
		g->members[member]->m.entry->statistics.waited += due - c->arrived;
		lab_throttle_begin(&g->throttle, member, dir, blk_rq_bytes(blk_mq_rq_from_pdu(c)), due);
	}
	if (due != g->armed && due <= KTIME_MAX)
		hrtimer_start(&g->timer, ns_to_ktime(due), HRTIMER_MODE_ABS_HARD);
	g->armed = due;
}

static enum hrtimer_restart lab_timer(struct hrtimer *timer)
{
	struct lab_group *g = container_of(timer, struct lab_group, timer);
	unsigned long flags;
	LIST_HEAD(begun);

	spin_lock_irqsave(&lab_lock, flags);
	g->armed = LAB_NEVER;
	lab_release(g, ktime_get_ns(), &begun);
	spin_unlock_irqrestore(&lab_lock, flags);
	lab_finish_all(&begun);
	return HRTIMER_NORESTART;
}

/* --- requests to a drive -------------------------------------------------------------------------- */

/* A write entered the cache: copies the replaced data to the undo log, and the new data to the map. */
static void lab_on_dirty(struct lab_drive *drive, void *tag, u64 page, u8 sectors, u8 before, u32 slot)
{
	struct lab_disk *d = drive->owner;
	struct lab_command *c = tag;
	u64 end = min_t(u64, (page + 1) * LAB_DRIVE_PAGE, lab_end(blk_mq_rq_from_pdu(c)));

	lab_undo_keep(&d->m, page, sectors, slot);
	if (!WARN_ON_ONCE(c->position / LAB_DRIVE_PAGE != page))	/* in order */
		lab_copy(d, c, end - c->position);
}

static void lab_on_clean(struct lab_drive *drive, u64 page, u8 sectors, u32 slot)
{
	struct lab_disk *d = drive->owner;

	WRITE_ONCE(d->m.undo[slot].sectors, d->m.undo[slot].sectors & ~sectors);
}

/* Copies the data of a read, and of a write that went to the medium without the cache. */
static void lab_on_done(struct lab_drive *drive, void *tag, u64 when, bool failed)
{
	struct lab_disk *d = drive->owner;
	struct lab_command *c = tag;
	struct request *rq = blk_mq_rq_from_pdu(c);
	int op = lab_op_of(rq);

	if (failed || d->gone || (op == LAB_OP_READ && lab_is_bad(d, rq)))
		c->status = BLK_STS_IOERR;
	else if (op != LAB_OP_FLUSH)
		lab_copy(d, c, lab_end(rq) - c->position);
	if (op == LAB_OP_READ && !c->status)
		lab_misread(d, rq);
	if (trace)
		pr_info("trace %u %u done %llu\n", (u32)(d - disks), rq->tag, when);
	list_add_tail(&c->node, &d->ended);
}

static const struct lab_drive_ops lab_drive_ops = {
	.done = lab_on_done,
	.dirty = lab_on_dirty,
	.clean = lab_on_clean,
};

/* Runs the drive up to now, and collects the completed requests. */
static void lab_turn(struct lab_disk *d, u64 now, struct list_head *ended)
{
	u64 due;

	lab_drive_advance(d->drive, now);
	due = lab_drive_wake(d->drive);
	if (due != d->armed && due <= KTIME_MAX)
		hrtimer_start(&d->timer, ns_to_ktime(due), HRTIMER_MODE_ABS_HARD);
	d->armed = due;
	d->m.entry->drive_statistics = d->drive->statistics;
	list_splice_tail_init(&d->ended, ended);
}

static void lab_end_all(struct list_head *ended)
{
	struct lab_command *c, *next;

	list_for_each_entry_safe(c, next, ended, node) {
		struct request *rq = blk_mq_rq_from_pdu(c);

		list_del_init(&c->node);
		lab_end_request(rq->q->queuedata, rq, c->status);
	}
}

static enum hrtimer_restart lab_drive_timer(struct hrtimer *timer)
{
	struct lab_disk *d = container_of(timer, struct lab_disk, timer);
	unsigned long flags;
	LIST_HEAD(ended);

	spin_lock_irqsave(&lab_lock, flags);
	d->armed = LAB_NEVER;
	lab_turn(d, ktime_get_ns(), &ended);
	spin_unlock_irqrestore(&lab_lock, flags);
	lab_end_all(&ended);
	return HRTIMER_NORESTART;
}

static const char *const lab_drive_words[] = { "read", "write", "flush" };

static void lab_drive_queue(struct lab_disk *d, struct request *rq)
{
	struct lab_command *c = lab_command_begin(rq);
	int op = lab_op_of(rq);
	enum lab_drive_op what = op == LAB_OP_READ ? LAB_DRIVE_READ :
		op == LAB_OP_WRITE ? LAB_DRIVE_WRITE : LAB_DRIVE_FLUSH;
	bool fua = rq->cmd_flags & REQ_FUA;
	unsigned long flags;
	LIST_HEAD(ended);

	if (op != LAB_OP_READ && op != LAB_OP_WRITE && op != LAB_OP_FLUSH) {
		lab_end_request(d, rq, BLK_STS_NOTSUPP);
		return;
	}
	spin_lock_irqsave(&lab_lock, flags);
	if (d->gone || (op == LAB_OP_WRITE && lab_is_bad(d, rq))) {
		spin_unlock_irqrestore(&lab_lock, flags);
		lab_end_request(d, rq, BLK_STS_IOERR);
		return;
	}
	c->arrived = ktime_get_ns();
	lab_turn(d, c->arrived, &ended);
	if (trace)
		pr_info("trace %u %u %llu %s %d %llu %u\n", (u32)(d - disks), rq->tag, c->arrived,
			lab_drive_words[what], fua, op == LAB_OP_FLUSH ? 0 : c->position, blk_rq_bytes(rq));
	if (!lab_drive_submit(d->drive, c, what, fua, op == LAB_OP_FLUSH ? 0 : c->position, blk_rq_bytes(rq),
			      c->arrived)) {
		c->status = BLK_STS_RESOURCE;
		list_add_tail(&c->node, &ended);
	}
	lab_turn(d, c->arrived, &ended);
	spin_unlock_irqrestore(&lab_lock, flags);
	lab_end_all(&ended);
}

static blk_status_t lab_queue_rq(struct blk_mq_hw_ctx *hctx, const struct blk_mq_queue_data *bd)
{
	struct request *rq = bd->rq;
	struct lab_command *c = blk_mq_rq_to_pdu(rq);
	struct lab_disk *d = hctx->queue->queuedata;
	struct lab_group *g = d->group;
	int op = lab_op_of(rq);
	unsigned long flags;
	LIST_HEAD(begun);

	blk_mq_start_request(rq);
	if (d->drive) {
		lab_drive_queue(d, rq);
		return BLK_STS_OK;
	}
	/* As in QEMU, flushes and discards are free. */
	if (!g || (op != LAB_OP_READ && op != LAB_OP_WRITE && op != LAB_OP_ZERO)) {
		lab_finish(d, rq);
		return BLK_STS_OK;
	}

	spin_lock_irqsave(&lab_lock, flags);
	c->arrived = ktime_get_ns();
	lab_release(g, c->arrived, &begun);
	if (d->gone || lab_throttle_admit(&g->throttle, d->member, op == LAB_OP_READ ? LAB_READ : LAB_WRITE,
					  blk_rq_bytes(rq), c->arrived))
		list_add_tail(&c->node, &begun);
	else
		list_add_tail(&c->node, &d->waiting[op == LAB_OP_READ ? LAB_READ : LAB_WRITE]);
	lab_release(g, c->arrived, &begun);
	spin_unlock_irqrestore(&lab_lock, flags);
	lab_finish_all(&begun);
	return BLK_STS_OK;
}

/*
 * Requests that do not fit in a hard disk's queue stay in the kernel's scheduler, which sorts and merges them.
 * A limit of tags would let one more request leave the scheduler, and that request would wait unmerged.
 */
static int lab_get_budget(struct request_queue *q)
{
	struct lab_disk *d = q->queuedata;
	unsigned long flags;
	bool room;

	spin_lock_irqsave(&lab_lock, flags);
	room = d->busy < d->depth;
	d->busy += room;
	d->starved |= !room;
	spin_unlock_irqrestore(&lab_lock, flags);
	return room ? 0 : -1;
}

static void lab_put_budget(struct request_queue *q, int token)
{
	struct lab_disk *d = q->queuedata;
	unsigned long flags;

	spin_lock_irqsave(&lab_lock, flags);
	d->busy--;
	spin_unlock_irqrestore(&lab_lock, flags);
}

static const struct blk_mq_ops lab_mq_ops = {
	.queue_rq = lab_queue_rq,
	.get_budget = lab_get_budget,
	.put_budget = lab_put_budget,
};
static const struct block_device_operations lab_fops = { .owner = THIS_MODULE };

/* --- disks --------------------------------------------------------------------------------------- */

static ssize_t serial_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct lab_disk *d = dev_to_disk(dev)->private_data;

	return sysfs_emit(buf, "%.*s\n", (int)sizeof(d->m.entry->serial), d->m.entry->serial);
}
static DEVICE_ATTR_RO(serial);

static ssize_t model_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct lab_disk *d = dev_to_disk(dev)->private_data;

	return sysfs_emit(buf, "%.*s\n", (int)sizeof(d->m.entry->model), d->m.entry->model);
}
static DEVICE_ATTR_RO(model);

/*
 * Requests by kind, in the order of enum lab_op. The block layer's counters have each empty flush a second time, as a
 * write (blk-flush.c: blk_flush_complete_seq ends it as an ordinary request).
 */
static ssize_t requests_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct lab_disk *d = dev_to_disk(dev)->private_data;
	const u64 *n = d->m.entry->statistics.requests;

	return sysfs_emit(buf, "%llu %llu %llu %llu %llu\n", n[LAB_OP_READ], n[LAB_OP_WRITE], n[LAB_OP_FLUSH],
			  n[LAB_OP_DISCARD], n[LAB_OP_ZERO]);
}
static DEVICE_ATTR_RO(requests);

static struct attribute *lab_attrs[] = {
	&dev_attr_serial.attr, &dev_attr_model.attr, &dev_attr_requests.attr, NULL
};
ATTRIBUTE_GROUPS(lab);

#define LAB_DEPTH	256	/* as virtio-blk */

static u32 lab_depth(const struct lab_entry *e)
{
	return e->drive.kind == LAB_DRIVE_HDD ? min_t(u64, e->drive.queue_depth, LAB_DEPTH) : LAB_DEPTH;
}

/*
 * As many segments as a bio has pages (BIO_MAX_VECS), and no other limit of a request's size: up to
 * 1 MiB stays one request, whichever pages of memory it has. QEMU's virtio-blk has 254.
 */
#define LAB_SEGMENTS	256
#define LAB_DISCARD	(8u << (30 - SECTOR_SHIFT))

static struct gendisk *lab_alloc_disk(struct lab_disk *d)
{
	struct lab_entry *e = d->m.entry;
	/* A discarded block would show the base again. A drive writes zeroes like other data. */
	bool zeroes = !(e->flags & LAB_BASE) && e->drive.kind == LAB_DRIVE_NONE;
	struct gendisk *disk;

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)
	struct queue_limits limits = {
		.features = (e->flags & LAB_ROTATIONAL ? BLK_FEAT_ROTATIONAL : 0) |
			(e->flags & LAB_WRITE_BACK ? BLK_FEAT_WRITE_CACHE | BLK_FEAT_FUA : 0),
		.logical_block_size = e->logical,
		.physical_block_size = e->physical,
		.max_hw_sectors = UINT_MAX,
		.max_segments = LAB_SEGMENTS,
		.max_segment_size = UINT_MAX,
		.max_hw_discard_sectors = zeroes ? LAB_DISCARD : 0,
		.discard_granularity = zeroes ? LAB_BLOCK : 0,
		.max_write_zeroes_sectors = zeroes ? LAB_DISCARD : 0,
	};

	disk = blk_mq_alloc_disk(&d->tags, &limits, d);
#else
	struct request_queue *q;

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 9, 0)
	disk = blk_mq_alloc_disk(&d->tags, NULL, d);
#else
	disk = blk_mq_alloc_disk(&d->tags, d);
#endif
	if (IS_ERR(disk))
		return disk;
	q = disk->queue;
	blk_queue_logical_block_size(q, e->logical);
	blk_queue_physical_block_size(q, e->physical);
	blk_queue_max_hw_sectors(q, UINT_MAX);
	blk_queue_max_segments(q, LAB_SEGMENTS);
	blk_queue_max_segment_size(q, UINT_MAX);
	blk_queue_max_discard_sectors(q, zeroes ? LAB_DISCARD : 0);
	blk_queue_max_write_zeroes_sectors(q, zeroes ? LAB_DISCARD : 0);
	q->limits.discard_granularity = zeroes ? LAB_BLOCK : 0;
	blk_queue_write_cache(q, e->flags & LAB_WRITE_BACK, e->flags & LAB_WRITE_BACK);
	if (!(e->flags & LAB_ROTATIONAL))
		blk_queue_flag_set(QUEUE_FLAG_NONROT, q);
#endif
	return disk;
}

static int lab_attach(u32 index)
{
	struct lab_disk *d = &disks[index];
	struct lab_entry *e = d->m.entry;
	int error;

	if (d->disk)
		return -EBUSY;
	d->gone = false;
	d->busy = 0;
	d->starved = false;
	d->depth = lab_depth(e);
	d->tags = (struct blk_mq_tag_set) {
		.ops = &lab_mq_ops,
		.nr_hw_queues = 1,
		.queue_depth = d->depth,
		.numa_node = NUMA_NO_NODE,
		.cmd_size = sizeof(struct lab_command),
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 14, 0)
		.flags = BLK_MQ_F_SHOULD_MERGE,
#endif
	};
	error = blk_mq_alloc_tag_set(&d->tags);
	if (error)
		return error;
	d->disk = lab_alloc_disk(d);
	if (IS_ERR(d->disk)) {
		error = PTR_ERR(d->disk);
		goto free_tags;
	}
	snprintf(d->disk->disk_name, DISK_NAME_LEN, "lab%u", index);
	d->disk->fops = &lab_fops;
	d->disk->private_data = d;
	if (!(e->flags & LAB_PARTITIONS))	/* later it may have partitions */
		set_bit(GD_SUPPRESS_PART_SCAN, &d->disk->state);
	set_capacity(d->disk, e->sectors);
	set_disk_ro(d->disk, e->flags & LAB_READ_ONLY);
	error = device_add_disk(NULL, d->disk, lab_groups);
	clear_bit(GD_SUPPRESS_PART_SCAN, &d->disk->state);
	if (!error)
		return 0;
	put_disk(d->disk);
free_tags:
	d->disk = NULL;
	blk_mq_free_tag_set(&d->tags);
	return error;
}

/* Runs the drive after another event than a request. */
static void lab_drive_now(struct lab_disk *d)
{
	unsigned long flags;
	LIST_HEAD(ended);

	if (!d->drive)
		return;
	spin_lock_irqsave(&lab_lock, flags);
	lab_turn(d, ktime_get_ns(), &ended);
	spin_unlock_irqrestore(&lab_lock, flags);
	lab_end_all(&ended);
}

/* Unplugs a disk: waiting and later requests fail. */
static int lab_detach(u32 index)
{
	struct lab_disk *d = &disks[index];
	unsigned long flags;
	LIST_HEAD(begun);

	if (!d->disk)
		return -ENODEV;
	blk_mark_disk_dead(d->disk);
	spin_lock_irqsave(&lab_lock, flags);
	d->gone = true;
	list_splice_tail_init(&d->waiting[LAB_READ], &begun);
	list_splice_tail_init(&d->waiting[LAB_WRITE], &begun);
	if (d->drive)	/* the drive completes its requests; del_gendisk waits for them */
		lab_drive_stall(d->drive, 0, ktime_get_ns());
	if (d->group) {
		d->group->throttle.way[LAB_READ].pending[d->member] = 0;
		d->group->throttle.way[LAB_WRITE].pending[d->member] = 0;
	}
	spin_unlock_irqrestore(&lab_lock, flags);
	lab_finish_all(&begun);
	lab_drive_now(d);
	del_gendisk(d->disk);
	put_disk(d->disk);
	blk_mq_free_tag_set(&d->tags);
	d->disk = NULL;
	return 0;
}

/* --- commands of the guest: /sys/module/lab_disk/parameters --------------------------------------- */

static int lab_disk_number(const char *text, u32 *index)
{
	int error = kstrtou32(text, 0, index);

	return error ? error : *index < known ? 0 : -EINVAL;
}

static int attach_set(const char *text, const struct kernel_param *param)
{
	u32 index;
	int error = lab_disk_number(text, &index);

	if (error)
		return error;
	mutex_lock(&attach_lock);
	error = lab_attach(index);
	mutex_unlock(&attach_lock);
	return error;
}

static int detach_set(const char *text, const struct kernel_param *param)
{
	u32 index;
	int error = lab_disk_number(text, &index);

	if (error)
		return error;
	mutex_lock(&attach_lock);
	error = lab_detach(index);
	mutex_unlock(&attach_lock);
	return error;
}

/*
 * "DISK OFFSET LENGTH FLAGS [ARGUMENT]" (enum lab_bad_flags; bytes) adds a range. "DISK" alone removes all
 * ranges.
 */
static int bad_set(const char *text, const struct kernel_param *param)
{
	struct lab_bad bad = {};
	struct lab_entry *e;
	u32 index, i;
	int n = sscanf(text, "%u %llu %llu %u %u", &index, &bad.offset, &bad.length, &bad.flags, &bad.argument);

	if ((n != 1 && n < 4) || index >= known)
		return -EINVAL;
	e = disks[index].m.entry;
	if (n == 1) {
		WRITE_ONCE(e->bads, 0);
		return 0;
	}
	for (i = 0; i < e->bads && e->bad[i].flags; i++)
		;
	if (i >= LAB_BAD_RANGES)
		return -ENOSPC;
	e->bad[i] = bad;
	barrier();
	if (i == e->bads)
		WRITE_ONCE(e->bads, i + 1);
	return 0;
}

/* "DISK OFFSET LENGTH FLIP": changes the medium's bytes by exclusive or. A write restores them. */
static int rot_set(const char *text, const struct kernel_param *param)
{
	u64 at, offset, length, size;
	unsigned long flags;
	u8 *data = NULL;
	u32 index, flip;

	if (sscanf(text, "%u %llu %llu %u", &index, &offset, &length, &flip) != 4 || index >= known ||
	    flip < 1 || flip > 255)
		return -EINVAL;
	size = disks[index].m.entry->sectors << SECTOR_SHIFT;
	if (length > size || offset > size - length)
		return -EINVAL;
	spin_lock_irqsave(&lab_lock, flags);
	for (at = offset; at < offset + length; at++) {
		if (!data || at % SECTOR_SIZE == 0)
			data = lab_medium(&disks[index].m, at >> SECTOR_SHIFT);
		if (!data)
			break;
		data[at % SECTOR_SIZE] ^= flip;
	}
	spin_unlock_irqrestore(&lab_lock, flags);
	return at < offset + length ? -ENOSPC : 0;
}

/* "DISK NANOSECONDS": stalls a drive, which completes no request; 0 ends a stall, 2^64 - 1: no end. */
static int stall_set(const char *text, const struct kernel_param *param)
{
	u64 nanoseconds, until, now = ktime_get_ns();
	unsigned long flags;
	u32 index;

	if (sscanf(text, "%u %llu", &index, &nanoseconds) != 2 || index >= known || !disks[index].drive)
		return -EINVAL;
	spin_lock_irqsave(&lab_lock, flags);
	until = nanoseconds < LAB_NEVER / 2 ? now + nanoseconds : LAB_NEVER;
	if (trace)
		pr_info("trace %u 0 %llu stall %llu\n", index, now, until);
	lab_drive_stall(disks[index].drive, until, now);
	spin_unlock_irqrestore(&lab_lock, flags);
	lab_drive_now(&disks[index]);
	return 0;
}

static int lab_join(u32 i);

/*
 * "DISK" and six rates in the order of enum lab_bucket_index, 0: no limit. As in QEMU (throttle_group_config),
 * the buckets start with full capacity, and the first waiting request begins.
 */
static int limit_set(const char *text, const struct kernel_param *param)
{
	struct lab_limit limits[LAB_BUCKETS] = {};
	struct lab_throttle fresh, *t;
	struct lab_disk *d;
	unsigned long flags;
	int dir;
	LIST_HEAD(begun);
	u32 index;
	u64 now;

	if (sscanf(text, "%u %llu %llu %llu %llu %llu %llu", &index, &limits[0].avg, &limits[1].avg,
		   &limits[2].avg, &limits[3].avg, &limits[4].avg, &limits[5].avg) != 7 || index >= known)
		return -EINVAL;
	d = &disks[index];
	now = ktime_get_ns();
	if (d->drive || !lab_throttle_init(&fresh, limits, d->m.entry->op_size, 1, now))
		return -EINVAL;
	memcpy(d->m.entry->limits, limits, sizeof(limits));
	if (!d->group)
		return lab_join(index);
	spin_lock_irqsave(&lab_lock, flags);
	t = &d->group->throttle;
	memcpy(t->bucket, fresh.bucket, sizeof(t->bucket));
	t->leaked = now;
	for (dir = 0; dir < LAB_DIRECTIONS; dir++) {
		t->way[dir].armed = false;
		if (t->way[dir].pending[d->member])
			lab_throttle_arm(t, dir, d->member, now);
		else
			lab_throttle_pass(t, d->member, dir, now);
	}
	lab_release(d->group, now, &begun);
	spin_unlock_irqrestore(&lab_lock, flags);
	lab_finish_all(&begun);
	return 0;
}

/* Exit status of the guest's commands, for the host. */
static int status_set(const char *text, const struct kernel_param *param)
{
	u8 status;
	int error = kstrtou8(text, 0, &status);

	if (error || !state)
		return error ? error : -ENODEV;
	state->status = 0x100 | status;
	return 0;
}

static int stop_set(const char *text, const struct kernel_param *param);

#define LAB_ACTION(name)							\
	static const struct kernel_param_ops name##_ops = { .set = name##_set };	\
	module_param_cb(name, &name##_ops, NULL, 0200)
LAB_ACTION(attach);
LAB_ACTION(detach);
LAB_ACTION(bad);
LAB_ACTION(rot);
LAB_ACTION(stall);
LAB_ACTION(limit);
LAB_ACTION(status);
LAB_ACTION(stop);

/* --- /dev/lab_io, kernel messages, the guest's end ------------------------------------------------ */

/* Returns the end of an area's data, and how many of n bytes fit. Counts used and lost bytes. */
static void *lab_room(const struct lab_area *area, u64 *used, u64 *lost, size_t *n)
{
	void *to = region + area->offset + *used;
	size_t fits = min_t(u64, *n, area->size - *used);

	*lost += *n - fits;
	*n = fits;
	return to;
}

static ssize_t io_read(struct file *file, char __user *to, size_t n, loff_t *position)
{
	return simple_read_from_buffer(to, n, position, region + header->input.offset, header->input.size);
}

static ssize_t io_write(struct file *file, const char __user *from, size_t n, loff_t *position)
{
	static DEFINE_MUTEX(lock);
	size_t fits = n;
	ssize_t error = 0;
	void *to;

	mutex_lock(&lock);
	to = lab_room(&header->output, &state->output_used, &state->output_lost, &fits);
	if (copy_from_user(to, from, fits))
		error = -EFAULT;
	else
		WRITE_ONCE(state->output_used, state->output_used + fits);
	mutex_unlock(&lock);
	/* A command must not fail because its output is too long: the host reads how much was lost. */
	return error ? error : n;
}

static const struct file_operations io_fops = {
	.owner = THIS_MODULE,
	.read = io_read,
	.write = io_write,
	.llseek = noop_llseek,
};

static struct miscdevice io_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "lab_io",
	.fops = &io_fops,
};

/* --- /dev/lab_random ------------------------------------------------------------------------------ */

/*
 * init mounts it as /dev/urandom. The kernel's takes 28 instructions per byte (ChaCha20): half of this CPU, whose
 * time is instructions, while a real CPU would need a twentieth. It is a linear congruential generator (Knuth's
 * MMIX) with its halves mixed: not zeros, not compressible, not secret, and equal in each guest.
 */
static u64 random_seed = 1;
static DEFINE_MUTEX(random_lock);

static int seed_set(const char *text, const struct kernel_param *param)
{
	return kstrtou64(text, 0, &random_seed);
}
LAB_ACTION(seed);

static ssize_t random_read(struct file *file, char __user *to, size_t n, loff_t *position)
{
	u64 *page = (u64 *)__get_free_page(GFP_KERNEL);
	size_t done = 0, part;
	int i;

	if (!page)
		return -ENOMEM;
	while (done < n && !(done && signal_pending(current))) {
		mutex_lock(&random_lock);
		for (i = 0; i < PAGE_SIZE / sizeof(u64); i++) {
			random_seed = random_seed * 6364136223846793005ull + 1442695040888963407ull;
			page[i] = random_seed ^ random_seed >> 32;
		}
		mutex_unlock(&random_lock);
		part = min_t(size_t, n - done, PAGE_SIZE);
		part -= copy_to_user(to + done, page, part);
		if (!part)
			break;
		done += part;
		cond_resched();
	}
	free_page((unsigned long)page);
	return done || !n ? done : -EFAULT;
}

static const struct file_operations random_fops = {
	.owner = THIS_MODULE,
	.read = random_read,
	.llseek = noop_llseek,
};

static struct miscdevice random_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "lab_random",
	.mode = 0666,
	.fops = &random_fops,
};

static void console_write(struct console *console, const char *text, unsigned int length)
{
	size_t fits = length;
	void *to = lab_room(&header->log, &state->log_used, &state->log_lost, &fits);

	memcpy(to, text, fits);
	WRITE_ONCE(state->log_used, state->log_used + fits);
}

static struct console lab_console = {
	.name = "lab",
	.write = console_write,
	.flags = CON_PRINTBUFFER | CON_ENABLED,	/* enabled independent of console= */
	.index = -1,
};

static int at_reboot(struct notifier_block *block, unsigned long action, void *data)
{
	state->phase = action == SYS_POWER_OFF ? LAB_POWERED_OFF : action == SYS_HALT ? LAB_HALTED :
		LAB_RESTARTED;
	return NOTIFY_DONE;
}

static int at_panic(struct notifier_block *block, unsigned long action, void *data)
{
	state->phase = LAB_PANICKED;
	return NOTIFY_DONE;
}

static struct notifier_block reboot_block = { .notifier_call = at_reboot };
#ifdef CONFIG_UML	/* before its own, which ends the process */
static struct notifier_block panic_block = { .notifier_call = at_panic, .priority = INT_MAX };
#else
static struct notifier_block panic_block = { .notifier_call = at_panic };
#endif

/* --- loading ------------------------------------------------------------------------------------- */

static bool lab_fits(u64 offset, u64 size)
{
	return offset <= header->size && size <= header->size - offset;
}

static bool lab_entry_valid(struct lab_entry *e)
{
	u64 blocks = DIV_ROUND_UP_ULL(e->sectors << SECTOR_SHIFT, LAB_BLOCK);

	return e->sectors && e->sectors < 1ull << 40 && lab_fits(e->map, blocks * sizeof(u32)) &&
		lab_fits(e->present, (blocks >> LAB_MAP_SHIFT) / 8 + 8) &&
		!(e->map % PAGE_SIZE) && !(e->present % sizeof(long)) &&
		is_power_of_2(e->logical) && e->logical >= 512 && e->logical <= PAGE_SIZE &&
		is_power_of_2(e->physical) && e->physical >= e->logical &&
		e->group <= LAB_DISKS && (!(e->flags & LAB_BASE) || base) &&
		(e->drive.kind == LAB_DRIVE_NONE ||
		 (!(e->flags & LAB_BASE) && e->slots == e->drive.cache / LAB_DRIVE_PAGE &&
		  lab_fits(e->undo, e->slots * sizeof(struct lab_undo)) &&
		  lab_fits(e->undo_data, (u64)e->slots * LAB_DRIVE_PAGE)));
}

static bool lab_header_valid(u64 size)
{
	return header->version == LAB_VERSION && header->size == size && header->disks <= LAB_DISKS &&
		lab_fits(header->table, header->disks * LAB_ENTRY) &&
		lab_fits(header->state, sizeof(*state)) &&
		header->blocks < U32_MAX && lab_fits(header->data, header->blocks << LAB_BLOCK_SHIFT) &&
		lab_fits(header->link, header->blocks * sizeof(u32)) &&
		lab_fits(header->input.offset, header->input.size) &&
		lab_fits(header->output.offset, header->output.size) &&
		lab_fits(header->log.offset, header->log.size);
}

#ifdef CONFIG_UML

static int lab_map(void)
{
	region = header = lab_native_region(&region_size);
	if (!region || header->magic != LAB_MAGIC || !lab_header_valid(region_size)) {
		pr_err("no region, or its header does not fit this driver\n");
		return -EINVAL;
	}
	base = lab_native_base(&base_size);
	pm_power_off = machine_power_off;	/* else Linux halts */
	return 0;
}

#else

static int lab_map_one(u64 start, u64 size)
{
	void *memory = memremap(start, size, MEMREMAP_WB);

	if (!memory) {
		pr_err("cannot map %llu bytes at %#llx\n", size, start);
	} else if (!region && *(u64 *)memory == LAB_MAGIC) {
		region = header = memory;
		region_size = size;
		if (!lab_header_valid(size)) {
			pr_err("header at %#llx does not fit this driver or this region\n", start);
			return -EINVAL;
		}
	} else if (!base) {
		base = memory;
		base_size = size;
	} else {
		pr_warn("a third region at %#llx is not used\n", start);
		memunmap(memory);
	}
	return 0;
}

/*
 * Maps all NVDIMMs: the one with the header, and at most one other, the base. The kernel's own drivers would
 * make pmem disks of them. A region in a PCI BAR is no alternative: QEMU could not save the guest without the
 * region's contents (x-ignore-shared needs the address before PCI's state is loaded).
 */
static int lab_map(void)
{
	struct acpi_table_header *nfit;
	struct acpi_nfit_header *e;
	int error = 0;

	if (ACPI_FAILURE(acpi_get_table(ACPI_SIG_NFIT, 0, &nfit)))
		return -ENODEV;
	for (e = (void *)nfit + sizeof(struct acpi_table_nfit);
	     !error && e->length && (void *)e < (void *)nfit + nfit->length; e = (void *)e + e->length) {
		struct acpi_nfit_system_address *range = (void *)e;

		if (e->type == ACPI_NFIT_TYPE_SYSTEM_ADDRESS)
			error = lab_map_one(range->address, range->length);
	}
	acpi_put_table(nfit);
	return error ? error : region ? 0 : -ENODEV;
}

#endif

static void lab_unmap(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(groups); i++) {
		if (groups[i])
			hrtimer_cancel(&groups[i]->timer);
		kfree(groups[i]);
	}
	for (i = 0; i < known; i++)
		if (disks[i].drive) {
			hrtimer_cancel(&disks[i].timer);
			vfree(disks[i].drive);
		}
#ifndef CONFIG_UML
	if (region)
		memunmap(region);
	if (base)
		memunmap(base);
#endif
}

static void lab_timer_init(struct hrtimer *timer, enum hrtimer_restart (*function)(struct hrtimer *))
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
	hrtimer_setup(timer, function, CLOCK_MONOTONIC, HRTIMER_MODE_ABS_HARD);
#else
	hrtimer_init(timer, CLOCK_MONOTONIC, HRTIMER_MODE_ABS_HARD);
	timer->function = function;
#endif
}

static struct lab_group *lab_group_new(void)
{
	struct lab_group *g = kzalloc(sizeof(*g), GFP_KERNEL);

	if (!g)
		return NULL;
	g->armed = LAB_NEVER;
	lab_timer_init(&g->timer, lab_timer);
	return g;
}

/* Creates the drive of disk i with an empty cache. The host has handled the cache of an earlier guest. */
static int lab_build(u32 i)
{
	struct lab_disk *d = &disks[i];
	struct lab_entry *e = d->m.entry;
	u64 bytes = lab_drive_bytes(&e->drive);
	struct lab_drive *drive = bytes ? vzalloc(bytes) : NULL;
	u32 slot;

	if (bytes && !drive)
		return -ENOMEM;
	if (!drive || !lab_drive_init(drive, &e->drive, e->sectors << SECTOR_SHIFT, &lab_drive_ops,
				      ktime_get_ns())) {
		pr_err("disk %u: a drive with values out of range\n", i);
		vfree(drive);
		return -EINVAL;
	}
	drive->owner = d;
	for (slot = 0; slot < e->slots; slot++)
		d->m.undo[slot].sectors = 0;
	drive->statistics = e->drive_statistics;
	INIT_LIST_HEAD(&d->ended);
	d->armed = LAB_NEVER;
	lab_timer_init(&d->timer, lab_drive_timer);
	d->drive = drive;
	return 0;
}

/* Adds disk i to its numbered group, or to its own. A new group starts with full capacity. */
static int lab_join(u32 i)
{
	struct lab_disk *d = &disks[i];
	struct lab_entry *e = d->m.entry;
	u32 number = e->group ? e->group : LAB_DISKS + 1 + i;
	struct lab_group *g = groups[number];

	if (!g) {
		g = lab_group_new();
		if (!g)
			return -ENOMEM;
		if (!lab_throttle_init(&g->throttle, e->limits, e->op_size, 1, ktime_get_ns())) {
			pr_err("disk %u: limits that QEMU would not take either\n", i);
			kfree(g);
			return -EINVAL;
		}
		if (!lab_throttle_limits(&g->throttle)) {
			kfree(g);
			return 0;
		}
		g->throttle.members = 0;
		groups[number] = g;
	}
	if (g->throttle.members == LAB_MEMBERS) {
		pr_err("disk %u: its group has %u members already\n", i, LAB_MEMBERS);
		return -EINVAL;
	}
	d->group = g;
	d->member = g->throttle.members++;
	g->members[d->member] = d;
	return 0;
}

/* Finds the state and the disks in the header and the table. After an error nothing has changed. */
static int lab_locate(void)
{
	u32 i;

	if (header->magic != LAB_MAGIC || !lab_header_valid(region_size) || header->disks < known) {
		pr_err("the header does not fit this driver, this region or this guest's %u disks\n", known);
		return -EINVAL;
	}
	for (i = 0; i < header->disks; i++) {
		struct lab_entry *e = region + header->table + i * LAB_ENTRY;

		if (!lab_entry_valid(e) ||
		    (disks[i].disk && get_capacity(disks[i].disk) != e->sectors)) {
			pr_err("disk %u: its entry in the table is not valid\n", i);
			return -EINVAL;
		}
	}
	state = region + header->state;
	for (i = 0; i < header->disks; i++) {
		struct lab_disk *d = &disks[i];

		d->m.entry = region + header->table + i * LAB_ENTRY;
		d->m.map = region + d->m.entry->map;
		d->m.present = region + d->m.entry->present;
		d->m.undo = region + d->m.entry->undo;
	}
	return 0;
}

/* Adds the table's new disks, without attaching them. */
static int lab_add(void)
{
	int error;

	for (; known < header->disks; known++) {
		INIT_LIST_HEAD(&disks[known].waiting[LAB_READ]);
		INIT_LIST_HEAD(&disks[known].waiting[LAB_WRITE]);
		error = disks[known].m.entry->drive.kind == LAB_DRIVE_NONE ? lab_join(known) : lab_build(known);
		if (error)
			return error;
	}
	return 0;
}

/* Attaches the disks from number i on. */
static void lab_attach_from(u32 i)
{
	for (; i < known; i++) {
		int error = disks[i].m.entry->flags & LAB_ABSENT ? 0 : lab_attach(i);

		if (error)	/* the host reads the kernel's messages */
			pr_err("disk %u: %d\n", i, error);
	}
	pr_info("%u disks, %llu blocks of %u bytes, %llu in use\n", known, header->blocks, LAB_BLOCK,
		state->used);
}

/*
 * Stops the guest at this instruction, for a snapshot: QEMU has -device pvpanic -action panic=pause. The guest
 * may continue over another region, so header and table are read again: offsets may differ, and there may be
 * further disks. Until they are read no interrupt may access the region.
 */
static int stop_set(const char *text, const struct kernel_param *param)
{
	unsigned long flags;
	u32 first;
	int error;

	if (!state)
		return -ENODEV;
	mutex_lock(&attach_lock);
	first = known;
	spin_lock_irqsave(&lab_lock, flags);
#ifndef CONFIG_UML
	outb(1, 0x505);
#endif
	barrier();	/* the whole region may have changed */
	error = lab_locate();
	spin_unlock_irqrestore(&lab_lock, flags);
	if (!error)
		error = lab_add();
	if (!error)
		lab_attach_from(first);
	mutex_unlock(&attach_lock);
	return error;
}

static int __init lab_init(void)
{
	int error = lab_map();

	if (!error)
		error = lab_locate();
	if (!error)
		error = lab_add();
	if (!error)
		error = misc_register(&io_device);
	if (!error && misc_register(&random_device))	/* then /dev/urandom is the kernel's */
		random_device.this_device = NULL;
	if (error) {
		lab_unmap();
		return error;
	}
	register_console(&lab_console);
	register_reboot_notifier(&reboot_block);
	atomic_notifier_chain_register(&panic_notifier_list, &panic_block);
	state->phase = LAB_RUNNING;
	lab_attach_from(0);
	return 0;
}

static void __exit lab_exit(void)
{
	u32 i;

	for (i = 0; i < known; i++)
		lab_detach(i);
	atomic_notifier_chain_unregister(&panic_notifier_list, &panic_block);
	unregister_reboot_notifier(&reboot_block);
	unregister_console(&lab_console);
	if (random_device.this_device)
		misc_deregister(&random_device);
	misc_deregister(&io_device);
	state->phase = LAB_NOT_LOADED;
	lab_unmap();
}

module_init(lab_init);
module_exit(lab_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Disks in a memory region shared with the host, timed by the guest's own clock");
