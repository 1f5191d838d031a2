/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Contents of disks in a region (region.h): the map of blocks, and the undo log of drives with a volatile cache.
 *
 * One file for the guest's kernel and for tests in user space: no lock and no allocation. The includer must
 * serialise calls.
 */
#ifndef LAB_MAP_H
#define LAB_MAP_H

#include "region.h"

#ifdef __KERNEL__
#include <linux/bitops.h>
#include <linux/minmax.h>
#include <linux/string.h>
#else
#define barrier() __asm__ volatile("" ::: "memory")
#define WRITE_ONCE(to, value) (*(volatile __typeof__(to) *)&(to) = (value))
#define min_t(type, a, b) ((type)(a) < (type)(b) ? (type)(a) : (type)(b))

static inline bool test_bit(u64 bit, const unsigned long *bits)
{
	return bits[bit / 64] >> bit % 64 & 1;
}

static inline void set_bit(u64 bit, unsigned long *bits)
{
	bits[bit / 64] |= 1ul << bit % 64;
}

/* Returns the first byte with another value; NULL: none. */
static inline const void *memchr_inv(const void *data, int byte, size_t size)
{
	const u8 *at = data;

	for (; size; size--, at++)
		if (*at != byte)
			return at;
	return NULL;
}
#endif

#define LAB_BLOCK_PAGES	((1u << LAB_BLOCK / LAB_DRIVE_PAGE) - 1)	/* a bit for each */

/* The contents of one disk. */
struct lab_map {
	struct lab_entry *entry;
	u32 *map;
	unsigned long *present;
	struct lab_undo *undo;
	u64 undone;	/* order of the newest entry of the undo log */
};

static void *region, *base;
static u64 base_size;
static struct lab_header *header;
static struct lab_state *state;

/*
 * QEMU may end at any instruction, and leaves the region as it is. The order of the stores below ensures that
 * a block is in the map, or free, or (after such an end) lost until the host repairs the list, but never two
 * of these. A block that is not in the map holds zeros.
 */
static inline u32 lab_block_new(void)
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

static inline void *lab_block_data(u32 entry)
{
	return region + header->data + ((u64)(entry - 1) << LAB_BLOCK_SHIFT);
}

/* A page of a block in use that was never written has its bit set: it holds zeros, and may be a hole. */
static inline u32 *lab_unwritten(u32 entry)
{
	return (u32 *)(region + header->link) + entry - 1;
}

static inline u32 lab_block_of(struct lab_map *m, u64 index)
{
	/* Reading a hole in the host's file may allocate memory: the map of 12 TiB is 768 MiB of holes. */
	return test_bit(index >> LAB_MAP_SHIFT, m->present) ? m->map[index] : 0;
}

/* Writes zeros, but not to pages of zeros: they may be holes in the host's file. */
static inline void lab_clear(void *data, u32 size)
{
	u32 n;

	for (; size; data += n, size -= n) {
		n = min_t(u32, size, LAB_DRIVE_PAGE - (unsigned long)data % LAB_DRIVE_PAGE);
		if (memchr_inv(data, 0, n))
			memset(data, 0, n);
	}
}

static inline void lab_block_free(struct lab_map *m, u64 index)
{
	u32 *link = region + header->link;
	u32 entry = lab_block_of(m, index);

	if (!entry)
		return;
	WRITE_ONCE(m->map[index], 0);
	lab_clear(lab_block_data(entry), LAB_BLOCK);
	WRITE_ONCE(link[entry - 1], state->free);
	barrier();
	WRITE_ONCE(state->free, entry);
	state->used--;
}

/* Returns the contents of a block that was never written. */
static inline void *lab_base(struct lab_map *m, u64 position, u32 size)
{
	if (!(m->entry->flags & LAB_BASE) || position + size > base_size)
		return NULL;
	return base + position;
}

/* Returns where to write within one block; NULL: no block is left. */
static inline void *lab_block_get(struct lab_map *m, u64 position, u32 size)
{
	u64 index = position >> LAB_BLOCK_SHIFT;
	u32 entry = lab_block_of(m, index), offset = position & (LAB_BLOCK - 1);
	u32 first = offset / LAB_DRIVE_PAGE, last = (offset + size - 1) / LAB_DRIVE_PAGE;
	void *from;

	if (!entry) {
		entry = lab_block_new();
		if (!entry)
			return NULL;
		from = lab_base(m, index << LAB_BLOCK_SHIFT, LAB_BLOCK);
		if (from)
			memcpy(lab_block_data(entry), from, LAB_BLOCK);
		WRITE_ONCE(*lab_unwritten(entry), from ? 0 : LAB_BLOCK_PAGES);
		barrier();
		set_bit(index >> LAB_MAP_SHIFT, m->present);
		WRITE_ONCE(m->map[index], entry);
	}
	WRITE_ONCE(*lab_unwritten(entry), *lab_unwritten(entry) & ~((2u << last) - (1u << first)));
	barrier();
	return lab_block_data(entry) + offset;
}

/* Reads within one block. */
static inline void lab_read(struct lab_map *m, u64 position, void *to, u32 size)
{
	u32 entry = lab_block_of(m, position >> LAB_BLOCK_SHIFT);
	void *from;

	if (entry)
		from = lab_block_data(entry) + (position & (LAB_BLOCK - 1));
	else
		from = lab_base(m, position, size);
	if (from)
		memcpy(to, from, size);
	else
		memset(to, 0, size);
}

static inline bool lab_write(struct lab_map *m, u64 position, const void *from, u32 size)
{
	void *to;

	if (!lab_block_of(m, position >> LAB_BLOCK_SHIFT) && !lab_base(m, position, size) && !memchr_inv(from, 0, size))
		return true;
	to = lab_block_get(m, position, size);
	if (!to)
		return false;
	memcpy(to, from, size);
	return true;
}

/* --- a drive's volatile cache: the map has new data, the undo log has the replaced data ----------- */

static inline void *lab_undo_data(struct lab_map *m, u32 slot)
{
	return region + m->entry->undo_data + (u64)slot * LAB_DRIVE_PAGE;
}

/* The host applies the undo log when the cache is lost. An entry is complete before its sectors are set. */
static inline void lab_undo_keep(struct lab_map *m, u64 page, u32 sectors, u32 slot)
{
	struct lab_undo *u = &m->undo[slot];
	u64 position = page * LAB_DRIVE_PAGE;
	u32 entry = lab_block_of(m, position >> LAB_BLOCK_SHIFT), i;

	sectors &= ~u->sectors;
	if (!u->sectors) {
		u->page = page;
		u->order = ++m->undone;
		u->zeros = 0;
	}
	if (!entry || *lab_unwritten(entry) >> (position & (LAB_BLOCK - 1)) / LAB_DRIVE_PAGE & 1) {
		u->zeros |= sectors;
	} else {
		void *from = lab_block_data(entry) + (position & (LAB_BLOCK - 1));
		void *to = lab_undo_data(m, slot);

		if (sectors == 0xff)
			memcpy(to, from, LAB_DRIVE_PAGE);
		else
			for (i = 0; i < LAB_DRIVE_PAGE / LAB_DRIVE_SECTOR; i++)
				if (sectors & 1 << i)
					memcpy(to + i * LAB_DRIVE_SECTOR, from + i * LAB_DRIVE_SECTOR, LAB_DRIVE_SECTOR);
		u->zeros &= ~sectors;
	}
	barrier();
	WRITE_ONCE(u->sectors, u->sectors | sectors);
	barrier();
}

/* Returns the oldest undo entry with this sector, the medium's contents. NULL: the map has them. */
static inline struct lab_undo *lab_undo_of(struct lab_map *m, u64 sector)
{
	struct lab_undo *found = NULL, *u;

	for (u = m->undo; u < m->undo + m->entry->slots; u++)
		if (u->sectors >> sector % 8 & 1 && u->page == sector / 8 && (!found || u->order < found->order))
			found = u;
	return found;
}

/* Returns a sector of the medium for writing; NULL: no block is left. */
static inline u8 *lab_medium(struct lab_map *m, u64 sector)
{
	struct lab_undo *u = lab_undo_of(m, sector);
	u32 bit = 1 << sector % 8;
	u8 *data;

	if (!u)
		return lab_block_get(m, sector << 9, LAB_DRIVE_SECTOR);
	data = (u8 *)lab_undo_data(m, u - m->undo) + sector % 8 * LAB_DRIVE_SECTOR;
	if (u->zeros & bit)
		memset(data, 0, LAB_DRIVE_SECTOR);
	u->zeros &= ~bit;
	return data;
}

#endif
