// SPDX-License-Identifier: GPL-2.0
/*
 * The block driver of a guest that `lab hunt` or `lab debug` runs: all of lab_disk, with a seeded disturbance
 * (disturb.h), a limit of guest time, a log of requests, and a stop at a time of the guest's clock.
 *
 * It is a module of its own with the same name, so that all other guests keep the very bytes of their lab_disk.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt	/* as in lab_disk.c */

#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/cpu.h>
#include <linux/kthread.h>
#include <linux/sched/debug.h>
#include <linux/sched/signal.h>
#include <linux/tracepoint.h>

#include "disturb.h"

static int lab_hunt_add(struct device *parent, struct gendisk *disk, const struct attribute_group **groups);
static void lab_hunt_end(struct request *rq, blk_status_t status);

#define device_add_disk		lab_hunt_add
#define blk_mq_end_request	lab_hunt_end
#include "lab_disk.c"
#undef device_add_disk
#undef blk_mq_end_request

/* A request that its disk has not received yet. */
struct lab_late {
	struct list_head node;	/* in lab_lates the earliest first, or in lab_late_free */
	u64 due;
	struct blk_mq_hw_ctx *hctx;
	struct request *rq;
};

/* An entry of the log of requests; drive/requests.py reads it. */
struct lab_seen {
	u64 when;		/* ns of the guest's clock */
	u64 sector;
	u32 bytes;
	u16 disk;		/* number in the table */
	u16 tag;
	u8 event;		/* D: issued, R: received late by the disk, C: completed, E: failed */
	u8 op;			/* enum lab_op */
	u16 flags;		/* enum lab_seen_flags */
	u32 reserved;
};

enum lab_seen_flags { LAB_SEEN_FUA = 1, LAB_SEEN_SYNC = 2, LAB_SEEN_META = 4, LAB_SEEN_AHEAD = 8 };

#define LAB_SEEN	(1u << 16)	/* of more entries the last ones are kept */
#define LAB_LATES	1024		/* most requests that are late at once */

static bool disturbed;		/* requests and CPU are disturbed */
static struct lab_disturb disturb;
static struct hrtimer lab_late_timer, lab_point_timer, lab_limit_timer, lab_stop_timer;
static LIST_HEAD(lab_lates);
static LIST_HEAD(lab_late_free);
static struct lab_seen *lab_seen;	/* NULL: nothing is logged */
static u64 lab_seen_count;
static struct task_struct *lab_away_thread;
static struct tracepoint *lab_waking;
static u64 lab_stop;		/* QEMU stops at the first point from then on */
static u64 lab_away;		/* for how many nanoseconds the thread is to take the CPU */

/* --- log of requests ------------------------------------------------------------------------------- */

/* Called with the lock. */
static void lab_see(u8 event, struct request *rq)
{
	struct lab_disk *d = rq->q->queuedata;
	struct lab_seen *seen;

	if (!lab_seen || d == disks)	/* the root file system's disk */
		return;
	seen = &lab_seen[lab_seen_count++ % LAB_SEEN];
	seen->when = ktime_get_ns();
	seen->sector = blk_rq_pos(rq);
	seen->bytes = blk_rq_bytes(rq);
	seen->disk = d - disks;
	seen->tag = rq->tag;
	seen->event = event;
	seen->op = lab_op_of(rq);
	seen->flags = (rq->cmd_flags & REQ_FUA ? LAB_SEEN_FUA : 0) | (rq->cmd_flags & REQ_SYNC ? LAB_SEEN_SYNC : 0) |
		(rq->cmd_flags & REQ_META ? LAB_SEEN_META : 0) | (rq->cmd_flags & REQ_RAHEAD ? LAB_SEEN_AHEAD : 0);
}

static void lab_hunt_end(struct request *rq, blk_status_t status)
{
	unsigned long flags;
	u64 soon;

	spin_lock_irqsave(&lab_lock, flags);
	lab_see(status ? 'E' : 'C', rq);
	soon = disturbed ? lab_disturb_soon(&disturb) : 0;
	if (soon)
		hrtimer_start(&lab_point_timer, ns_to_ktime(ktime_get_ns() + soon), HRTIMER_MODE_ABS_HARD);
	spin_unlock_irqrestore(&lab_lock, flags);
	blk_mq_end_request(rq, status);
}

/* Appends to the guest's output, whatever the guest was writing there. */
static void lab_say(const void *data, size_t n)
{
	void *to = lab_room(&header->output, &state->output_used, &state->output_lost, &n);

	memcpy(to, data, n);
	state->output_used += n;
}

/* Stops QEMU at this instruction, after writing the log of requests to the output. */
static enum hrtimer_restart lab_stop_fire(struct hrtimer *timer)
{
	u64 kept = min_t(u64, lab_seen_count, LAB_SEEN), first = lab_seen_count - kept, i;
	char line[80];

	state->clock = ktime_get_ns();
	lab_say(line, scnprintf(line, sizeof(line), "\n@lab requests %llu %llu %llu\n", state->clock,
				lab_seen_count, kept));
	for (i = first; i < lab_seen_count; i++)
		lab_say(&lab_seen[i % LAB_SEEN], sizeof(*lab_seen));
	outb(1, 0x505);
	return HRTIMER_NORESTART;
}

/* --- late requests --------------------------------------------------------------------------------- */

/* Called with the lock. */
static void lab_arm_late(void)
{
	struct lab_late *first = list_first_entry_or_null(&lab_lates, struct lab_late, node);

	if (first)
		hrtimer_start(&lab_late_timer, ns_to_ktime(first->due), HRTIMER_MODE_ABS_HARD);
}

static enum hrtimer_restart lab_late_fire(struct hrtimer *timer)
{
	struct blk_mq_queue_data data = { .last = true };
	u64 now = ktime_get_ns();
	struct lab_late *late;
	unsigned long flags;

	spin_lock_irqsave(&lab_lock, flags);
	while ((late = list_first_entry_or_null(&lab_lates, struct lab_late, node)) && late->due <= now) {
		struct blk_mq_hw_ctx *hctx = late->hctx;

		data.rq = late->rq;
		list_move(&late->node, &lab_late_free);
		lab_see('R', data.rq);
		spin_unlock_irqrestore(&lab_lock, flags);
		lab_queue_rq(hctx, &data);
		spin_lock_irqsave(&lab_lock, flags);
	}
	lab_arm_late();
	spin_unlock_irqrestore(&lab_lock, flags);
	return HRTIMER_NORESTART;
}

/*
 * A late request is started by lab_queue_rq when its disk receives it. Requests overtake each other: until a
 * request has completed, a disk may handle it before or after any other.
 */
static blk_status_t lab_hunt_queue_rq(struct blk_mq_hw_ctx *hctx, const struct blk_mq_queue_data *bd)
{
	struct lab_late *late = NULL, *other;
	unsigned long flags;
	u64 span;

	spin_lock_irqsave(&lab_lock, flags);
	lab_see('D', bd->rq);
	span = disturbed ? lab_disturb_late(&disturb) : 0;
	if (span)
		late = list_first_entry_or_null(&lab_late_free, struct lab_late, node);
	if (late) {
		late->due = ktime_get_ns() + span;
		late->hctx = hctx;
		late->rq = bd->rq;
		list_for_each_entry_reverse(other, &lab_lates, node)
			if (other->due <= late->due)
				break;
		list_move(&late->node, &other->node);
		if (lab_lates.next == &late->node)
			lab_arm_late();
	}
	spin_unlock_irqrestore(&lab_lock, flags);
	return late ? BLK_STS_OK : lab_queue_rq(hctx, bd);
}

static const struct blk_mq_ops lab_hunt_ops = {
	.queue_rq = lab_hunt_queue_rq,
	.get_budget = lab_get_budget,
	.put_budget = lab_put_budget,
};

static int lab_hunt_add(struct device *parent, struct gendisk *disk, const struct attribute_group **groups)
{
	if (disk->private_data != disks)	/* the root file system's disk is not disturbed */
		disk->queue->mq_ops = &lab_hunt_ops;
	return device_add_disk(parent, disk, groups);
}

/* --- the CPU --------------------------------------------------------------------------------------- */

/* A thread above all others. It keeps the CPU idle: interrupts and disks go on, and QEMU's clock jumps. */
static int lab_away_run(void *unused)
{
	while (!kthread_should_stop()) {
		u64 span;

		set_current_state(TASK_INTERRUPTIBLE);
		span = xchg(&lab_away, 0);
		if (!span) {
			schedule();
			continue;
		}
		__set_current_state(TASK_RUNNING);
		play_idle_precise(span, U64_MAX);
	}
	return 0;
}

/* Preempts the running thread, or takes the CPU from all threads. */
static enum hrtimer_restart lab_point_fire(struct hrtimer *timer)
{
	u64 away = lab_disturb_away(&disturb);

	if (ktime_get_ns() >= lab_stop)
		lab_stop_fire(NULL);
	if (away) {
		lab_away = away;
		wake_up_process(lab_away_thread);
	} else {
		set_tsk_need_resched(current);
		set_preempt_need_resched();
	}
	hrtimer_set_expires(timer, ns_to_ktime(ktime_get_ns() + lab_disturb_apart(&disturb)));
	return HRTIMER_RESTART;
}

/*
 * The tracepoint sched_waking: interrupts are disabled, and no run queue is locked. The next point is soon after
 * it. Starting a timer wakes at most a kernel thread for soft interrupts, which does not count.
 */
static void lab_hunt_waking(void *unused, struct task_struct *task)
{
	static bool busy;
	u64 soon;

	if (busy || task == lab_away_thread)
		return;
	busy = true;
	soon = lab_disturb_woken(&disturb);
	if (soon)
		hrtimer_start(&lab_point_timer, ns_to_ktime(ktime_get_ns() + soon), HRTIMER_MODE_ABS_HARD);
	busy = false;
}

static void lab_find_waking(struct tracepoint *point, void *found)
{
	if (!strcmp(point->name, "sched_waking"))
		*(struct tracepoint **)found = point;
}

/* The guest hangs: shows where threads wait, and panics. */
static enum hrtimer_restart lab_limit_fire(struct hrtimer *timer)
{
	struct task_struct *process, *thread;

	rcu_read_lock();
	for_each_process_thread(process, thread)
		if (READ_ONCE(thread->__state) & TASK_UNINTERRUPTIBLE && !(READ_ONCE(thread->__state) & TASK_NOLOAD))
			sched_show_task(thread);
	rcu_read_unlock();
	panic("lab: the guest hangs: its commands did not end in time");
}

/* --- the guest's command --------------------------------------------------------------------------- */

static int lab_hunt_prepare(void)
{
	struct lab_late *all = vzalloc(LAB_LATES * sizeof(*all));
	struct lab_seen *seen = vzalloc(LAB_SEEN * sizeof(*seen));
	struct task_struct *thread = kthread_create_on_cpu(lab_away_run, NULL, 0, "lab_away");
	u32 i;

	for_each_kernel_tracepoint(lab_find_waking, &lab_waking);
	if (!all || !seen || IS_ERR(thread) || !lab_waking) {
		vfree(all);
		vfree(seen);
		return lab_waking ? -ENOMEM : -ENOENT;
	}
	for (i = 0; i < LAB_LATES; i++)
		list_add_tail(&all[i].node, &lab_late_free);
	lab_timer_init(&lab_late_timer, lab_late_fire);
	lab_timer_init(&lab_point_timer, lab_point_fire);
	lab_timer_init(&lab_limit_timer, lab_limit_fire);
	/* The only timer of its clock, so that its time does not move others in their tree. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
	hrtimer_setup(&lab_stop_timer, lab_stop_fire, CLOCK_BOOTTIME, HRTIMER_MODE_ABS_HARD);
#else
	hrtimer_init(&lab_stop_timer, CLOCK_BOOTTIME, HRTIMER_MODE_ABS_HARD);
	lab_stop_timer.function = lab_stop_fire;
#endif
	lab_away_thread = thread;
	sched_set_fifo(thread);
	wake_up_process(thread);
	lab_seen = seen;
	return 0;
}

/*
 * "SEED LIMIT STOP": begins the disturbance (SEED 0: none). LIMIT: nanoseconds of the guest's clock at which it
 * hangs; STOP: at which QEMU stops. A disturbed guest stops at a point, without a timer: one more that
 * is due within the next minute changes what an idle kernel does.
 */
static int disturb_set(const char *text, const struct kernel_param *param)
{
	u64 seed, limit, stop;
	int error;

	if (sscanf(text, "%llu %llu %llu", &seed, &limit, &stop) != 3 || limit > KTIME_MAX || stop > KTIME_MAX)
		return -EINVAL;
	if (lab_seen)
		return -EBUSY;
	error = lab_hunt_prepare();
	if (error)
		return error;
	hrtimer_start(&lab_limit_timer, ns_to_ktime(limit), HRTIMER_MODE_ABS_HARD);
	lab_stop = stop;
	if (!seed)
		hrtimer_start(&lab_stop_timer, ns_to_ktime(stop), HRTIMER_MODE_ABS_HARD);
	if (seed) {
		lab_disturb_init(&disturb, seed);
		disturbed = true;
		hrtimer_start(&lab_point_timer, ns_to_ktime(ktime_get_ns() + lab_disturb_apart(&disturb)),
			      HRTIMER_MODE_ABS_HARD);
		error = tracepoint_probe_register(lab_waking, lab_hunt_waking, NULL);
	}
	return error;
}
LAB_ACTION(disturb);
