// SPDX-License-Identifier: GPL-2.0
/*
 * What User-Mode Linux needs as a guest in virtual time. The parameters lab_region= and lab_base= are the files of
 * the region and of the root file system. Programs see neither the host's processor nor its time stamp counter:
 * both instructions trap (lab_user.c), and are emulated here. With lab_processor=host programs see the processor.
 */
#include <linux/delay.h>
#include <linux/init.h>
#include <linux/kernel.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <asm/ptrace.h>
#include <asm/unistd.h>
#include <sysdep/ptrace.h>

#include "lab_native.h"

static char *lab_region_file = "", *lab_base_file = "";

static int __init lab_region_setup(char *text)
{
	lab_region_file = text;
	return 1;
}
__setup("lab_region=", lab_region_setup);

static int __init lab_base_setup(char *text)
{
	lab_base_file = text;
	return 1;
}
__setup("lab_base=", lab_base_setup);

/* lab_user_begin() has read it. */
static int __init lab_processor_setup(char *text)
{
	return 1;
}
__setup("lab_processor=", lab_processor_setup);

void *lab_native_region(u64 *size)
{
	return lab_user_map(lab_region_file, 1, size);
}

void *lab_native_base(u64 *size)
{
	return *lab_base_file ? lab_user_map(lab_base_file, 0, size) : NULL;
}

/* --- instructions -------------------------------------------------------------------------------- */

#define GENERAL_PROTECTION 13
#define PAGE_FAULT 14
#define WRITE_ACCESS 2	/* bits of a page fault's error code */
#define USER 4
#define FEW 16
#define PAUSE 50	/* µs */

static unsigned int lab_readings;

/*
 * The time stamp counter counts nanoseconds. Reading the clock costs 256 ns (timer_read). A thread that reads the
 * counter again and again, and neither sleeps nor moves data, waits for it, as fio does for 64 ms when it starts: each
 * further reading takes longer, so that it does not trap 250,000 times.
 */
static u64 lab_counter(void)
{
	static struct task_struct *last;
	static unsigned long sleeps;

	if (last != current || sleeps != current->nvcsw)
		lab_readings = 0;
	last = current;
	sleeps = current->nvcsw;
	if (++lab_readings > FEW)
		udelay(PAUSE);
	return ktime_get_ns();
}

/*
 * A program calls the system. One that moves data does not wait for the counter, although it need not sleep: fio reads
 * the counter four times for each request, and a disk may end requests at once. Questions whether something has ended
 * are no such calls, since programs ask again and again.
 */
void lab_native_call(struct uml_pt_regs *regs)
{
	switch (UPT_SYSCALL_NR(regs)) {
	case __NR_io_uring_enter:
		if (!UPT_SYSCALL_ARG2(regs))	/* to_submit */
			return;
		fallthrough;
	case __NR_read:
	case __NR_write:
	case __NR_pread64:
	case __NR_pwrite64:
	case __NR_readv:
	case __NR_writev:
	case __NR_preadv:
	case __NR_pwritev:
	case __NR_preadv2:
	case __NR_pwritev2:
	case __NR_io_submit:
	case __NR_fsync:
	case __NR_fdatasync:
	case __NR_sync_file_range:
	case __NR_fallocate:
	case __NR_splice:
	case __NR_vmsplice:
	case __NR_sendfile:
	case __NR_copy_file_range:
	case __NR_msync:
		lab_readings = 0;
	}
}

/*
 * A processor with what every x86-64 host has that can hide its features (CPUID faulting): SSE4.2, no AVX, no
 * RDRAND, no invariant time stamp counter. glibc reads features and caches of makers that it knows only.
 */
static void lab_cpuid(u32 leaf, u32 *a, u32 *b, u32 *c, u32 *d)
{
	*a = *b = *c = *d = 0;
	switch (leaf) {
	case 0:
		*a = 1;
		memcpy(b, "Auth", 4);
		memcpy(d, "enti", 4);
		memcpy(c, "cAMD", 4);
		break;
	case 1:
		*a = 0x00800f11;
		*b = 0x00010800;
		*c = 1 << 0 | 1 << 9 | 1 << 13 | 1 << 19 | 1 << 20 | 1 << 23 | 1u << 31;
		*d = 0x078bfbfd;
		break;
	case 0x80000000:
		*a = 0x80000006;
		break;
	case 0x80000001:
		*c = 1;
		*d = 1 << 11 | 1 << 20 | 1 << 29;
		break;
	case 0x80000005:	/* 32 KiB, 8 ways, 64 bytes */
		*c = *d = 32 << 24 | 8 << 16 | 1 << 8 | 64;
		break;
	case 0x80000006:	/* 512 KiB, and 8 MiB with 16 ways */
		*c = 512 << 16 | 6 << 12 | 1 << 8 | 64;
		*d = 16 << 18 | 8 << 12 | 1 << 8 | 64;
		break;
	}
}

/*
 * What a program's fault was, without a handler in its process, which would cost a second stop. The host does not
 * tell reads and writes apart. A read of a private page that may be written is treated as a write: the program gets
 * its own copy earlier. In shared pages a write that follows a read is a fault of its own.
 */
void lab_native_fault(struct faultinfo *fi, int code, unsigned long address)
{
	struct mm_struct *mm = current->mm;
	struct vm_area_struct *vma;
	bool write = false;
	pte_t *pte;

	*fi = (struct faultinfo) { .cr2 = address, .trap_no = PAGE_FAULT, .error_code = USER };
	if (code != SEGV_MAPERR && code != SEGV_ACCERR) {
		fi->trap_no = GENERAL_PROTECTION;
		return;
	}
	mmap_read_lock(mm);
	vma = find_vma(mm, address);
	if (vma && vma->vm_flags & VM_WRITE) {
		pte = vma->vm_flags & VM_SHARED ? virt_to_pte(mm, address) : NULL;
		write = !(vma->vm_flags & VM_SHARED) ||
			(code == SEGV_ACCERR && pte && pte_present(*pte) && pte_young(*pte));
	}
	mmap_read_unlock(mm);
	if (write)
		fi->error_code |= WRITE_ACCESS;
}

/* Returns whether a program's fault was one of these instructions, which is done now. */
bool lab_native_instruction(struct uml_pt_regs *regs)
{
	unsigned long at = UPT_IP(regs), *gp = regs->gp;
	u8 code[3] = {};
	u32 a, b, c, d;
	u64 counter;

	if (regs->faultinfo.trap_no != GENERAL_PROTECTION || copy_from_user(code, (void __user *)at, 2) ||
	    code[0] != 0x0f)
		return false;
	if (code[1] == 0xa2) {	/* cpuid */
		lab_cpuid(gp[HOST_AX], &a, &b, &c, &d);
		gp[HOST_AX] = a;
		gp[HOST_BX] = b;
		gp[HOST_CX] = c;
		gp[HOST_DX] = d;
	} else if (code[1] == 0x31 ||	/* rdtsc, rdtscp */
		   (code[1] == 0x01 && !copy_from_user(code + 2, (void __user *)at + 2, 1) && code[2] == 0xf9)) {
		counter = lab_counter();
		gp[HOST_AX] = (u32)counter;
		gp[HOST_DX] = counter >> 32;
		if (code[1] == 0x01)
			gp[HOST_CX] = 0;
	} else {
		return false;
	}
	UPT_IP(regs) = at + (code[1] == 0x01 ? 3 : 2);
	return true;
}
