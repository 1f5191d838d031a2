// SPDX-License-Identifier: GPL-2.0
/* The part of a native guest that makes system calls of the host. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lab_native.h"

#define LAB_STACK (8ul << 20)
#define LAB_SET_CPUID 0x1012	/* ARCH_SET_CPUID, <asm/prctl.h> */
#define LAB_VISIBLE "lab_processor=host"

/* Programs see the host's processor, and have all of its registers. */
int lab_user_visible;

/* What the process starts has it too. Also called in a program's process before its first instruction. */
void lab_user_hide(void)
{
	if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV)) {
		dprintf(2, "lab: the time stamp counter cannot be hidden: %s\n", strerror(errno));
		_exit(1);
	}
}

/*
 * The first of main(): starts the program again with the same addresses on every host. They depend on randomisation
 * and on the stack's limit. Then it hides the processor's features and its time stamp counter, from the kernel too,
 * which needs them no more: if only programs had them hidden, each switch between the two would write registers of
 * the processor that a hypervisor watches. The features took 15 µs of 17 µs, and on another host the counter 12 of
 * 18. A processor without CPUID faulting cannot hide its features: it is named by the argument lab_processor=host.
 */
void lab_user_begin(char **argv)
{
	struct rlimit stack = { LAB_STACK, LAB_STACK }, none = { 0, 0 }, now;
	char **word;

	for (word = argv; *word; word++)
		if (!strcmp(*word, LAB_VISIBLE))
			lab_user_visible = 1;
	if (!getrlimit(RLIMIT_STACK, &now) && now.rlim_cur == LAB_STACK &&
	    personality(0xffffffff) & ADDR_NO_RANDOMIZE) {
		if (lab_user_visible || !syscall(SYS_arch_prctl, LAB_SET_CPUID, 0)) {
			lab_user_hide();
			return;
		}
		perror("lab: this processor cannot hide its features (CPUID faulting)");
		exit(1);
	}
	setrlimit(RLIMIT_CORE, &none);
	if (setrlimit(RLIMIT_STACK, &stack) || personality(PER_LINUX | ADDR_NO_RANDOMIZE) < 0) {
		perror("lab: stack and addresses");
		exit(1);
	}
	execv("/proc/self/exe", argv);
	perror("lab: /proc/self/exe");
	exit(1);
}

/* In place of getrandom(2): the same numbers in every guest. The host seeds /dev/lab_random, this seeds Linux. */
long lab_user_random(void *buffer, unsigned long size)
{
	static unsigned long state = 88172645463325252UL;
	unsigned char *to = buffer;
	unsigned long n;

	for (n = 0; n < size; n++) {
		state = state * 6364136223846793005UL + 1442695040888963407UL;
		to[n] = state >> 56;
	}
	return size;
}

/* Maps a file; programs do not get the mapping. The base is never written. */
void *lab_user_map(const char *path, int shared, unsigned long long *size)
{
	int protection = shared ? PROT_READ | PROT_WRITE : PROT_READ;
	int file = open(path, (shared ? O_RDWR : O_RDONLY) | O_CLOEXEC);
	struct stat about;
	void *at;

	if (file < 0)
		return NULL;
	if (fstat(file, &about)) {
		close(file);
		return NULL;
	}
	*size = about.st_size;
	at = mmap(NULL, about.st_size, protection, (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_NORESERVE, file, 0);
	close(file);
	if (at == MAP_FAILED)
		return NULL;
	madvise(at, about.st_size, MADV_DONTFORK);
	return at;
}
