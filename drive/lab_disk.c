// SPDX-License-Identifier: GPL-2.0
/*
 * Disks for a guest whose clock is virtual. Contents lie in a memory region that the host shares as an
 * NVDIMM of QEMU's (region.h), so no request waits for the host; how long one takes is
 * decided by throttle.h and a timer of the guest.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/acpi.h>
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

#include "region.h"

struct lab_disk;

/* Disks that share limits; a disk with limits of its own is alone in one. */
struct lab_group {
	struct lab_throttle throttle;
	struct hrtimer timer;
	u64 armed;
	struct lab_disk *members[LAB_MEMBERS];
};

struct lab_disk {
	struct lab_entry *entry;
	u32 *map;
	unsigned long *present;
	struct gendisk *disk;	/* NULL: not attached */
	struct blk_mq_tag_set tags;
	struct lab_group *group;	/* NULL: unlimited */
	u32 member;
	bool gone;
	struct list_head waiting[LAB_DIRECTIONS];
};

struct lab_command {
	struct list_head node;
	u64 arrived;
};

static void *region, *base;
static u64 region_size, base_size;
static struct lab_header *header;
static struct lab_state *state;
static struct lab_disk disks[LAB_DISKS];
static u32 known;	/* disks that are here; the table may have more (stop_set) */
/* First those that entries share, by number from 1 on, then each disk's own. */
static struct lab_group *groups[LAB_DISKS + 1 + LAB_DISKS];

/*
 * One lock for all: block map, throttles, queues. A guest with virtual time has one processor. It is
 * never held over more than one block's copy, so timers are at most some microseconds late, and what a
 * late timer releases counts from when it was due.
 */
static DEFINE_SPINLOCK(lab_lock);
static DEFINE_MUTEX(attach_lock);

/* --- contents ------------------------------------------------------------------------------------ */

/*
 * QEMU may end at any instruction, and the region stays as it is then. Hence the order of stores below:
 * a block is in the map, or free, or (after such an end) lost until the host repairs the list, and never
 * two of these; one that is not in the map holds zeros.
 */
static u32 lab_block_new(void)
{
	u32 *link = region + header->link;
	u32 block;

	if (state->free) {
		block = state->free - 1;
		WRITE_ONCE(state->free, link[block]);
	} else if (state->fresh < header->blocks) {
		block = state->fresh;
		WRITE_ONCE(state->fresh, state->fresh + 1);
	} else {
		state->full++;
		return 0;
	}
	state->used++;
	return block + 1;
}

static void *lab_block_data(u32 entry)
{
	return region + header->data + ((u64)(entry - 1) << LAB_BLOCK_SHIFT);
}

static u32 lab_block_of(struct lab_disk *d, u64 index)
{
	/* Reading a hole of the host's file may take memory there: a map of 12 TiB is 768 MiB of holes. */
	return test_bit(index >> LAB_MAP_SHIFT, d->present) ? d->map[index] : 0;
}

/* Zeros, without writing to pages that hold nothing else: they may be holes in the host's file. */
static void lab_clear(void *data, u32 size)
{
	u32 n;

	for (; size; data += n, size -= n) {
		n = min_t(u32, size, PAGE_SIZE - offset_in_page(data));
		if (memchr_inv(data, 0, n))
			memset(data, 0, n);
	}
}

static void lab_block_free(struct lab_disk *d, u64 index)
{
	u32 *link = region + header->link;
	u32 entry = lab_block_of(d, index);

	if (!entry)
		return;
	WRITE_ONCE(d->map[index], 0);
	lab_clear(lab_block_data(entry), LAB_BLOCK);
	WRITE_ONCE(link[entry - 1], state->free);
	barrier();
	WRITE_ONCE(state->free, entry);
	state->used--;
}

/* What a block holds that was never written. */
static void *lab_base(struct lab_disk *d, u64 position, u32 size)
{
	if (!(d->entry->flags & LAB_BASE) || position + size > base_size)
		return NULL;
	return base + position;
}

/* A block to write to, or NULL: none is left. */
static void *lab_block_get(struct lab_disk *d, u64 index)
{
	u32 entry = lab_block_of(d, index);
	void *from;

	if (entry)
		return lab_block_data(entry);
	entry = lab_block_new();
	if (!entry)
		return NULL;
	from = lab_base(d, index << LAB_BLOCK_SHIFT, LAB_BLOCK);
	if (from)
		memcpy(lab_block_data(entry), from, LAB_BLOCK);
	barrier();
	set_bit(index >> LAB_MAP_SHIFT, d->present);
	WRITE_ONCE(d->map[index], entry);
	return lab_block_data(entry);
}

/* Within one block. */
static void lab_read(struct lab_disk *d, u64 position, void *to, u32 size)
{
	u32 entry = lab_block_of(d, position >> LAB_BLOCK_SHIFT);
	void *from;

	if (entry)
		from = lab_block_data(entry) + (position & (LAB_BLOCK - 1));
	else
		from = lab_base(d, position, size);
	if (from)
		memcpy(to, from, size);
	else
		memset(to, 0, size);
}

static blk_status_t lab_write(struct lab_disk *d, u64 position, const void *from, u32 size)
{
	u64 index = position >> LAB_BLOCK_SHIFT;
	void *block;

	if (!lab_block_of(d, index) && !lab_base(d, position, size) && !memchr_inv(from, 0, size))
		return BLK_STS_OK;
	block = lab_block_get(d, index);
	if (!block)
		return BLK_STS_NOSPC;
	memcpy(block + (position & (LAB_BLOCK - 1)), from, size);
	return BLK_STS_OK;
}

/* Discards and zeros alike: zeros take no place. */
static blk_status_t lab_zero(struct lab_disk *d, u64 position, u64 size)
{
	u64 end = position + size, n;
	unsigned long flags;

	for (; position < end; position += n) {
		u64 index = position >> LAB_BLOCK_SHIFT;
		u32 offset = position & (LAB_BLOCK - 1);
		u32 entry;

		if (!offset && !test_bit(index >> LAB_MAP_SHIFT, d->present)) {
			n = ((index | ((1 << LAB_MAP_SHIFT) - 1)) + 1 - index) << LAB_BLOCK_SHIFT;
			continue;
		}
		n = min_t(u64, end - position, LAB_BLOCK - offset);
		spin_lock_irqsave(&lab_lock, flags);
		entry = lab_block_of(d, index);
		if (entry && n == LAB_BLOCK)
			lab_block_free(d, index);
		else if (entry)
			lab_clear(lab_block_data(entry) + offset, n);
		spin_unlock_irqrestore(&lab_lock, flags);
	}
	return BLK_STS_OK;
}

static blk_status_t lab_transfer(struct lab_disk *d, struct request *rq)
{
	u64 position = blk_rq_pos(rq) << SECTOR_SHIFT;
	bool write = rq_data_dir(rq) == WRITE;
	struct req_iterator iterator;
	struct bio_vec vec;
	unsigned long flags;

	rq_for_each_segment(vec, rq, iterator) {
		void *data = bvec_kmap_local(&vec);
		u32 done, n;

		for (done = 0; done < vec.bv_len; done += n, position += n) {
			blk_status_t status = BLK_STS_OK;

			n = min_t(u32, vec.bv_len - done, LAB_BLOCK - (position & (LAB_BLOCK - 1)));
			spin_lock_irqsave(&lab_lock, flags);
			if (write)
				status = lab_write(d, position, data + done, n);
			else
				lab_read(d, position, data + done, n);
			spin_unlock_irqrestore(&lab_lock, flags);
			if (status) {
				kunmap_local(data);
				return status;
			}
		}
		kunmap_local(data);
	}
	return BLK_STS_OK;
}

/* --- requests ------------------------------------------------------------------------------------ */

static bool lab_is_bad(struct lab_disk *d, struct request *rq)
{
	u32 which = op_is_write(req_op(rq)) ? LAB_BAD_WRITE : LAB_BAD_READ;
	u64 start = blk_rq_pos(rq), end = start + blk_rq_sectors(rq);
	u32 i;

	for (i = 0; i < min_t(u32, READ_ONCE(d->entry->bads), LAB_BAD_RANGES); i++) {
		struct lab_bad *bad = &d->entry->bad[i];

		if (bad->flags & which && start < bad->start + bad->sectors && bad->start < end)
			return true;
	}
	return false;
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

/* Does what a request asks for, and ends it: its data are in the region before anybody hears of it. */
static void lab_finish(struct lab_disk *d, struct request *rq)
{
	struct lab_statistics *statistics = &d->entry->statistics;
	blk_status_t status = BLK_STS_OK;
	int op = lab_op_of(rq);
	unsigned long flags;

	if (op < 0)
		status = BLK_STS_NOTSUPP;
	else if (d->gone || (op != LAB_OP_FLUSH && lab_is_bad(d, rq)))
		status = BLK_STS_IOERR;
	else if (op == LAB_OP_READ || op == LAB_OP_WRITE)
		status = lab_transfer(d, rq);
	else if (op != LAB_OP_FLUSH)
		status = lab_zero(d, blk_rq_pos(rq) << SECTOR_SHIFT, blk_rq_bytes(rq));

	spin_lock_irqsave(&lab_lock, flags);
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

/* Collects what begins up to now, each as of its own time, however late this is. */
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
		g->members[member]->entry->statistics.waited += due - c->arrived;
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

static const struct blk_mq_ops lab_mq_ops = { .queue_rq = lab_queue_rq };
static const struct block_device_operations lab_fops = { .owner = THIS_MODULE };

/* --- disks --------------------------------------------------------------------------------------- */

static ssize_t serial_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct lab_disk *d = dev_to_disk(dev)->private_data;

	return sysfs_emit(buf, "%.*s\n", (int)sizeof(d->entry->serial), d->entry->serial);
}
static DEVICE_ATTR_RO(serial);

static ssize_t model_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct lab_disk *d = dev_to_disk(dev)->private_data;

	return sysfs_emit(buf, "%.*s\n", (int)sizeof(d->entry->model), d->entry->model);
}
static DEVICE_ATTR_RO(model);

static struct attribute *lab_attrs[] = { &dev_attr_serial.attr, &dev_attr_model.attr, NULL };
ATTRIBUTE_GROUPS(lab);

/* As many segments as QEMU's virtio-blk has, and no limit of its own to a request's size. */
#define LAB_SEGMENTS	254
#define LAB_DISCARD	(8u << (30 - SECTOR_SHIFT))

static struct gendisk *lab_alloc_disk(struct lab_disk *d)
{
	struct lab_entry *e = d->entry;
	bool zeroes = !(e->flags & LAB_BASE);	/* a discarded block would show the base again */
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
	struct lab_entry *e = d->entry;
	int error;

	if (d->disk)
		return -EBUSY;
	d->gone = false;
	d->tags = (struct blk_mq_tag_set) {
		.ops = &lab_mq_ops,
		.nr_hw_queues = 1,
		.queue_depth = 256,	/* virtio-blk's */
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
	if (!(e->flags & LAB_PARTITIONS))
		d->disk->flags |= GENHD_FL_NO_PART;
	set_capacity(d->disk, e->sectors);
	set_disk_ro(d->disk, e->flags & LAB_READ_ONLY);
	error = device_add_disk(NULL, d->disk, lab_groups);
	if (!error)
		return 0;
	put_disk(d->disk);
free_tags:
	d->disk = NULL;
	blk_mq_free_tag_set(&d->tags);
	return error;
}

/* Pulled out: what waits fails, and so does all that comes. */
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
	if (d->group) {
		d->group->throttle.way[LAB_READ].pending[d->member] = 0;
		d->group->throttle.way[LAB_WRITE].pending[d->member] = 0;
	}
	spin_unlock_irqrestore(&lab_lock, flags);
	lab_finish_all(&begun);
	del_gendisk(d->disk);
	put_disk(d->disk);
	blk_mq_free_tag_set(&d->tags);
	d->disk = NULL;
	return 0;
}

/* --- what the guest's commands may ask for: /sys/module/lab_disk/parameters ----------------------- */

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

/* "DISK START SECTORS FLAGS" (enum lab_bad_flags) adds a range; "DISK" alone clears all of them. */
static int bad_set(const char *text, const struct kernel_param *param)
{
	struct lab_bad bad = {};
	struct lab_entry *e;
	u32 index;
	int n = sscanf(text, "%u %llu %llu %u", &index, &bad.start, &bad.sectors, &bad.flags);

	if ((n != 1 && n != 4) || index >= known)
		return -EINVAL;
	e = disks[index].entry;
	if (n == 1) {
		WRITE_ONCE(e->bads, 0);
		return 0;
	}
	if (e->bads >= LAB_BAD_RANGES)
		return -ENOSPC;
	e->bad[e->bads] = bad;
	barrier();
	WRITE_ONCE(e->bads, e->bads + 1);
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
LAB_ACTION(status);
LAB_ACTION(stop);

/* --- /dev/lab_io, kernel messages, how the guest ended ------------------------------------------- */

/* Room at the end of an area: where, and how much of n fits. Counts both. */
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
	/* A command does not fail because its output is long: the host sees how much was lost. */
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
 * What init shows as /dev/urandom. The kernel's takes 28 instructions per byte (ChaCha20), and so half of a
 * processor whose time is instructions where real ones need a twentieth. A linear congruential generator
 * (Knuth's MMIX) with its halves mixed: no zeros, nothing that compresses, nothing secret. The same each time.
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
	.flags = CON_PRINTBUFFER | CON_ENABLED,	/* enabled whatever console= says */
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
static struct notifier_block panic_block = { .notifier_call = at_panic };

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
		e->group <= LAB_DISKS && (!(e->flags & LAB_BASE) || base);
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
 * Maps all NVDIMMs: the one with the header, and at most one other, the base. The kernel's own drivers
 * would make pmem disks of them; where the region is in a PCI BAR instead, QEMU cannot save the guest
 * without its contents (x-ignore-shared wants the address before PCI's state has been loaded).
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

static void lab_unmap(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(groups); i++) {
		if (groups[i])
			hrtimer_cancel(&groups[i]->timer);
		kfree(groups[i]);
	}
	if (region)
		memunmap(region);
	if (base)
		memunmap(base);
}

static struct lab_group *lab_group_new(void)
{
	struct lab_group *g = kzalloc(sizeof(*g), GFP_KERNEL);

	if (!g)
		return NULL;
	g->armed = LAB_NEVER;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
	hrtimer_setup(&g->timer, lab_timer, CLOCK_MONOTONIC, HRTIMER_MODE_ABS_HARD);
#else
	hrtimer_init(&g->timer, CLOCK_MONOTONIC, HRTIMER_MODE_ABS_HARD);
	g->timer.function = lab_timer;
#endif
	return g;
}

/* Puts disk i into its group: that of its number, or one of its own. A new group is as full as can be. */
static int lab_join(u32 i)
{
	struct lab_disk *d = &disks[i];
	struct lab_entry *e = d->entry;
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

/* Looks up where the header and the table have the state and the disks. On an error nothing has changed. */
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

		d->entry = region + header->table + i * LAB_ENTRY;
		d->map = region + d->entry->map;
		d->present = region + d->entry->present;
	}
	return 0;
}

/* Makes those disks of the table known that are not yet, without attaching them. */
static int lab_add(void)
{
	int error;

	for (; known < header->disks; known++) {
		INIT_LIST_HEAD(&disks[known].waiting[LAB_READ]);
		INIT_LIST_HEAD(&disks[known].waiting[LAB_WRITE]);
		error = lab_join(known);
		if (error)
			return error;
	}
	return 0;
}

/* Attaches the disks from number i on. */
static void lab_attach_from(u32 i)
{
	for (; i < known; i++) {
		int error = disks[i].entry->flags & LAB_ABSENT ? 0 : lab_attach(i);

		if (error)	/* the host reads it among the kernel's messages */
			pr_err("disk %u: %d\n", i, error);
	}
	pr_info("%u disks, %llu blocks of %u bytes, %llu in use\n", known, header->blocks, LAB_BLOCK,
		state->used);
}

/*
 * Stops the guest at this instruction, for a snapshot: QEMU has -device pvpanic -action panic=pause. It
 * may go on over another region, whose header and table are read anew: offsets may differ, and disks
 * beyond those that were here appear. Until they are read no interrupt may look at the region.
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
	outb(1, 0x505);
	barrier();	/* all of the region may have changed */
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
	if (!error && misc_register(&random_device))	/* /dev/urandom is the kernel's then */
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
