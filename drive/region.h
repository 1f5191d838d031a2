/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * The memory region that host and guest share: disks, commands, output. drive/README.md describes it,
 * drive/region.py writes and reads it on the host.
 *
 * All numbers are little-endian. An offset counts bytes from the region's start. The host writes the
 * region before the guest starts. Only the guest writes fields marked "guest", and the host may read
 * them at any time.
 */
#ifndef LAB_REGION_H
#define LAB_REGION_H

#include "drive.h"
#include "throttle.h"

#define LAB_MAGIC	0x316b7369442d6261ull	/* "ab-Disk1" */
#define LAB_VERSION	3
#define LAB_DISKS	65	/* 64 disks, and the root file system's */
/* Contents are stored in blocks of this size. A block of zeros is not stored. */
#define LAB_BLOCK_SHIFT	16
#define LAB_BLOCK	(1u << LAB_BLOCK_SHIFT)
/* Entries in a page of the map. One bit in `present` says whether any of them is set. */
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
	u64 blocks;			/* most blocks: the host has space for them */
	u64 data;			/* offset of the first block */
	u64 link;			/* offset of u32[blocks]: next free block, or unwritten pages; guest */
	struct lab_area input;		/* contents of /dev/lab_io for reads */
	struct lab_area output;		/* writes to /dev/lab_io are appended, guest */
	struct lab_area log;		/* kernel messages, guest */
};

enum lab_phase {
	LAB_NOT_LOADED, LAB_RUNNING, LAB_POWERED_OFF, LAB_HALTED, LAB_RESTARTED, LAB_PANICKED
};

struct lab_state {			/* guest, all fields */
	u32 phase;
	u32 status;			/* 0x100 | exit status of the guest's commands, once they have ended */
	u64 fresh;			/* blocks from here on were never used */
	u32 free;			/* first free block + 1; 0: none */
	u32 reserved;
	u64 used;			/* blocks in use */
	u64 full;			/* requests that failed because no block was left */
	u64 output_used, output_lost;	/* bytes */
	u64 log_used, log_lost;
	u64 clock;			/* the guest's monotonic clock when a request last ended, ns */
};

enum lab_flags {
	LAB_ABSENT	= 1,		/* becomes visible when it is attached */
	LAB_ROTATIONAL	= 2,
	LAB_WRITE_BACK	= 4,		/* announces a volatile cache, so the kernel sends flushes */
	LAB_PARTITIONS	= 8,		/* reads the partition table when attached */
	LAB_BASE	= 16,		/* unwritten blocks are those of the second region */
	LAB_READ_ONLY	= 32,
};

enum lab_bad_flags {
	LAB_BAD_READ	= 1,		/* so many reads of the range fail as argument says; 0: all */
	LAB_BAD_WRITE	= 2,		/* writes */
	LAB_BAD_DATA	= 4,		/* reads return its bytes after exclusive or with argument */
};

struct lab_bad {
	u64 offset, length;		/* bytes */
	u32 flags;			/* 0: free */
	u32 argument;
};

/* The medium's old contents of a page that has newer data in the drive's cache. */
struct lab_undo {			/* guest */
	u64 page;
	u64 order;			/* of a page's two entries, the one with the higher order is undone first */
	u32 sectors;			/* a bit for each; 0: free */
	u32 zeros;			/* sectors of zeros, which are not in the data */
};

enum lab_op { LAB_OP_READ, LAB_OP_WRITE, LAB_OP_FLUSH, LAB_OP_DISCARD, LAB_OP_ZERO, LAB_OPS };

struct lab_statistics {			/* guest */
	u64 requests[LAB_OPS];
	u64 bytes[LAB_OPS];
	u64 fua;			/* number of writes with FUA */
	u64 errors;
	u64 waited;			/* total nanoseconds that throttled requests waited */
};

struct lab_entry {
	char serial[32];
	char model[32];
	u64 sectors;			/* of 512 bytes */
	u64 map;			/* offset of u32[]: block + 1, or 0: zeros; guest */
	u64 present;			/* offset of a bitmap: pages of the map in use; guest */
	u32 flags;
	u32 logical, physical;		/* block sizes in bytes */
	u32 group;			/* 0: own limits; else shared with entries of the same number */
	u64 op_size;
	struct lab_limit limits[LAB_BUCKETS];
	u32 bads, reserved;
	struct lab_bad bad[LAB_BAD_RANGES];
	struct lab_statistics statistics;
	struct lab_drive_parameters drive;	/* if set, limits and group are unused */
	u64 undo;			/* offset of struct lab_undo[slots] */
	u64 undo_data;			/* offset of LAB_DRIVE_PAGE bytes for each */
	u32 slots, reserved2;
	struct lab_drive_statistics drive_statistics;	/* guest */
};

/* Distance of entries in bytes. */
#define LAB_ENTRY	2048

#endif
