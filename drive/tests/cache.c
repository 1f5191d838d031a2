// SPDX-License-Identifier: Apache-2.0
/*
 * Random requests to a drive over a region in a file, as lab_disk has them: drive.h decides when, map.h keeps the
 * contents. It may be killed at any instruction: what it had done by then is in LOG, which is shared memory.
 *   cache REGION LOG SEED REQUESTS
 * LOG: the number of records, then a struct record for each submission and each end. Each sector of a write's
 * data is full of its tag.
 * With LAB_TEST_LOST_FLUSH a flush ends without having reached the drive.
 */
#define _GNU_SOURCE
#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../map.h"

#define SPAN	(2 << 20)	/* bytes that requests touch */
#define LARGEST	64		/* sectors of a request */
#define IN_FLIGHT 24

enum kind { WRITE = 1, THROUGH, FLUSH, READ, END };

struct record {
	u64 kind, tag, offset, length, zeros;
};

struct request {
	struct record r;
	u64 position;
	bool busy;
};

static struct lab_map contents;
static struct request requests[IN_FLIGHT];
static u64 *records, seed, newest[SPAN / LAB_DRIVE_SECTOR];
static bool written[SPAN / LAB_DRIVE_PAGE];

static u64 chance(u64 below)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (seed >> 33) % below;
}

static void note(struct record r)
{
	((struct record *)(records + 1))[*records] = r;
	barrier();
	WRITE_ONCE(*records, *records + 1);
}

/* The next bytes of a request, up to `end`. */
static void copy(struct request *q, u64 end)
{
	u64 data[LAB_DRIVE_SECTOR / 8], i;

	for (; q->position < end; q->position += LAB_DRIVE_SECTOR) {
		u64 *last = &newest[q->position / LAB_DRIVE_SECTOR];

		if (q->r.kind == READ) {
			lab_read(&contents, q->position, data, sizeof(data));
			for (i = 0; i < LAB_DRIVE_SECTOR / 8; i++)
				assert(data[i] == *last);
			continue;
		}
		*last = q->r.zeros ? 0 : q->r.tag;
		for (i = 0; i < LAB_DRIVE_SECTOR / 8; i++)
			data[i] = *last;
		assert(lab_write(&contents, q->position, data, sizeof(data)));
		written[q->position / LAB_DRIVE_PAGE] = true;
	}
}

static void on_dirty(struct lab_drive *d, void *tag, u64 page, u8 sectors, u8 before, u32 slot)
{
	struct request *q = tag;
	u64 end = q->r.offset + q->r.length;

	(void)d, (void)before;
	lab_undo_keep(&contents, page, sectors, slot);
	assert(written[page] || (contents.undo[slot].zeros & sectors) == sectors);
	assert(q->position / LAB_DRIVE_PAGE == page);
	copy(q, min_t(u64, (page + 1) * LAB_DRIVE_PAGE, end));
}

static void on_clean(struct lab_drive *d, u64 page, u8 sectors, u32 slot)
{
	struct lab_undo *u = &contents.undo[slot];

	(void)d;
	assert(u->page == page && (u->sectors & sectors) == sectors);
	WRITE_ONCE(u->sectors, u->sectors & ~sectors);
}

static void on_done(struct lab_drive *d, void *tag, u64 when, bool failed)
{
	struct request *q = tag;

	(void)d, (void)when;
	assert(!failed);
	if (q->r.kind != FLUSH)
		copy(q, q->r.offset + q->r.length);
	q->busy = false;
	q->r.kind = END;
	note(q->r);
}

static const struct lab_drive_ops ops = { .done = on_done, .dirty = on_dirty, .clean = on_clean };

static void submit(struct lab_drive *d, struct request *q, u64 tag, u64 now)
{
	u64 first = chance(SPAN / LAB_DRIVE_SECTOR - LARGEST), sectors = 1 + chance(chance(4) ? 8 : LARGEST);
	u64 what = chance(32);
	struct record r = { what < 20 ? WRITE : what < 22 ? THROUGH : what < 24 ? FLUSH : READ, tag,
			    first * LAB_DRIVE_SECTOR, sectors * LAB_DRIVE_SECTOR, !chance(8) };

	if (r.kind == FLUSH)
		r.offset = r.length = 0;
	*q = (struct request){ .r = r, .position = r.offset, .busy = true };
	note(r);
#ifdef LAB_TEST_LOST_FLUSH
	if (r.kind == FLUSH) {
		on_done(d, q, now, false);
		return;
	}
#endif
	assert(lab_drive_submit(d, q, r.kind == READ ? LAB_DRIVE_READ : r.kind == FLUSH ? LAB_DRIVE_FLUSH :
				LAB_DRIVE_WRITE, r.kind == THROUGH, r.offset, r.length, now));
}

static void *shared(const char *path)
{
	struct stat s;
	int fd = open(path, O_RDWR);
	void *found;

	assert(fd >= 0 && !fstat(fd, &s));
	found = mmap(NULL, s.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert(found != MAP_FAILED);
	return found;
}

int main(int argc, char **argv)
{
	u64 now = 1000000000, tag = 0, most, i;
	struct lab_drive *d;

	assert(argc == 5);
	region = header = shared(argv[1]);
	assert(header->magic == LAB_MAGIC && header->version == LAB_VERSION);
	records = shared(argv[2]);
	seed = strtoull(argv[3], NULL, 10);
	most = strtoull(argv[4], NULL, 10);
	state = region + header->state;
	contents.entry = region + header->table;
	contents.map = region + contents.entry->map;
	contents.present = region + contents.entry->present;
	contents.undo = region + contents.entry->undo;
	assert(contents.entry->slots == contents.entry->drive.cache / LAB_DRIVE_PAGE);
	for (i = 0; i < SPAN / LAB_DRIVE_SECTOR; i++)
		lab_read(&contents, i * LAB_DRIVE_SECTOR, &newest[i], sizeof(newest[i]));
	for (i = 0; i < SPAN / LAB_DRIVE_PAGE; i++)
		written[i] = state->used;	/* by an earlier run, perhaps */
	d = calloc(1, lab_drive_bytes(&contents.entry->drive));
	assert(d && lab_drive_init(d, &contents.entry->drive, contents.entry->sectors * LAB_DRIVE_SECTOR, &ops, now));
	for (i = 0; i < most; i++) {
		struct request *q = &requests[chance(IN_FLIGHT)];

		now += chance(chance(4) ? 1000000 : 20000000);
		lab_drive_advance(d, now);
		if (!q->busy)
			submit(d, q, (strtoull(argv[3], NULL, 10) << 32) + ++tag, now);
	}
	printf("%llu\n", (unsigned long long)d->statistics.destages);
	return 0;
}
