/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * The memory region that host and guest share: disks, commands, output. drive/README.md describes it,
 * drive/region.py writes and reads it on the host.
 *
 * All numbers are little-endian. An offset counts bytes from the region's start. The host writes
 * everything before the guest starts, except what is marked "guest": that the guest alone writes, and
 * the host may read it at any time.
 */
#ifndef LAB_REGION_H
#define LAB_REGION_H

#include "drive.h"
#include "throttle.h"

#define LAB_MAGIC	0x316b7369442d6261ull	/* "ab-Disk1" */
#define LAB_VERSION	2
#define LAB_DISKS	65	/* 64, and the root file system's */
/* Contents are kept in blocks of this size. A block of zeros has no place. */
#define LAB_BLOCK_SHIFT	16
#define LAB_BLOCK	(1u << LAB_BLOCK_SHIFT)
/* A page of the map has so many entries: of these, one bit in `present` says whether any is set. */
#define LAB_MAP_SHIFT	10
#define LAB_BAD_RANGES	8

struct lab_area {
	u64 offset;
	u64 size;
};

struct lab_header {			/* at 0 */
	u64 magic;
	u32 version;
	u32 disks;			/* entries in the table */
	u64 size;			/* of the whole region */
	u64 table;			/* offset of struct lab_entry[disks] */
	u64 state;			/* offset of struct lab_state */
	u64 blocks;			/* how many there may be: what the host has space for */
	u64 data;			/* offset of the first block */
	u64 link;			/* offset of u32[blocks]: next free block, guest */
	struct lab_area input;		/* what /dev/lab_io reads */
	struct lab_area output;		/* where writes to /dev/lab_io are appended, guest */
	struct lab_area log;		/* kernel messages, guest */
};

enum lab_phase {
	LAB_NOT_LOADED, LAB_RUNNING, LAB_POWERED_OFF, LAB_HALTED, LAB_RESTARTED, LAB_PANICKED
};

struct lab_state {			/* guest, all of it */
	u32 phase;
	u32 status;			/* exit status of the guest's commands, if they ended: 0x100 | status */
	u64 fresh;			/* blocks from here on were never used */
	u32 free;			/* first free block + 1; 0: none */
	u32 reserved;
	u64 used;			/* blocks in use */
	u64 full;			/* requests that failed since no block was left */
	u64 output_used, output_lost;	/* bytes */
	u64 log_used, log_lost;
	u64 clock;			/* the guest's monotonic clock when a request last ended, ns */
};

enum lab_flags {
	LAB_ABSENT	= 1,		/* appears when it is attached */
	LAB_ROTATIONAL	= 2,
	LAB_WRITE_BACK	= 4,		/* announces a volatile cache, so that flushes arrive */
	LAB_PARTITIONS	= 8,		/* reads the partition table when it appears */
	LAB_BASE	= 16,		/* blocks that were never written are the second region's */
	LAB_READ_ONLY	= 32,
};

enum lab_bad_flags {
	LAB_BAD_READ	= 1,		/* reads that touch the range fail: as many as argument says; 0: all */
	LAB_BAD_WRITE	= 2,		/* writes */
	LAB_BAD_DATA	= 4,		/* its bytes are read wrongly: exclusive or with argument */
};

struct lab_bad {
	u64 offset, length;		/* bytes */
	u32 flags;			/* 0: free */
	u32 argument;
};

/* What a page of the medium held before a drive took newer data into its cache. */
struct lab_undo {			/* guest */
	u64 page;
	u64 order;			/* a page may have two: the one with the higher number is undone first */
	u32 sectors;			/* a bit for each; 0: free */
	u32 zeros;			/* those of them that held zeros, and are not in the data */
};

enum lab_op { LAB_OP_READ, LAB_OP_WRITE, LAB_OP_FLUSH, LAB_OP_DISCARD, LAB_OP_ZERO, LAB_OPS };

struct lab_statistics {			/* guest */
	u64 requests[LAB_OPS];
	u64 bytes[LAB_OPS];
	u64 fua;			/* of the writes */
	u64 errors;
	u64 waited;			/* nanoseconds that throttled requests waited, in all */
};

struct lab_entry {
	char serial[32];
	char model[32];
	u64 sectors;			/* of 512 bytes */
	u64 map;			/* offset of u32[]: block + 1, or 0: zeros; guest */
	u64 present;			/* offset of a bitmap: pages of the map in use; guest */
	u32 flags;
	u32 logical, physical;		/* block sizes in bytes */
	u32 group;			/* 0: limits of its own; else shared with entries of the same number */
	u64 op_size;
	struct lab_limit limits[LAB_BUCKETS];
	u32 bads, reserved;
	struct lab_bad bad[LAB_BAD_RANGES];
	struct lab_statistics statistics;
	struct lab_drive_parameters drive;	/* limits and group mean nothing then */
	u64 undo;			/* offset of struct lab_undo[slots] */
	u64 undo_data;			/* offset of LAB_DRIVE_PAGE bytes for each */
	u32 slots, reserved2;
	struct lab_drive_statistics drive_statistics;	/* guest */
};

/* Entries stand this far apart. */
#define LAB_ENTRY	2048

#endif
