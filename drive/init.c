// SPDX-License-Identifier: Apache-2.0
/*
 * First program of a guest in virtual time. It loads the modules of its initramfs, and mounts the root file
 * system from /dev/lab0. In a sealed guest it makes the shell run the commands in /dev/lab_io, reports their
 * exit status and powers off. It is static. It starts neither udev nor systemd: only the commands start
 * programs. In an unsealed guest (LAB_INIT=PROGRAM on the kernel's command line, which the kernel passes as
 * environment variable) it starts the busy process and executes PROGRAM.
 *
 * With the arguments "keep FILE..." it keeps the cached pages of these files in memory.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define IO "/dev/lab_io"
#define MODULES "/modules"
#define BUSY "/run/lab-busy.pid"

static void end(unsigned status)
{
	int fd = open("/sys/module/lab_disk/parameters/status", O_WRONLY);

	if (fd >= 0)
		dprintf(fd, "%u", status);
	sync();
	reboot(RB_POWER_OFF);
	for (;;)
		pause();
}

static void need(int result, const char *what)
{
	if (result >= 0)
		return;
	printf("init: %s: %m\n", what);
	fflush(stdout);
	end(125);
}

/* Loads modules by name: names begin with two digits for the order. */
static void load_modules(void)
{
	struct dirent **names;
	int n = scandir(MODULES, &names, NULL, alphasort), i;

	for (i = 0; i < n; i++) {
		char path[512];
		int fd;

		if (names[i]->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), MODULES "/%s", names[i]->d_name);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		need(fd, path);
		need(syscall(SYS_finit_module, fd, "", 0), path);
		close(fd);
	}
}

/* Copies a file of the initramfs to a directory that no boot keeps. */
static void copy(int from, const char *path)
{
	char part[8192];
	ssize_t n;
	int to = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

	need(from, path);
	need(to, path);
	while ((n = read(from, part, sizeof(part))) > 0)
		need(write(to, part, n) == n ? 0 : -1, path);
	need(n, path);
	close(to);
	close(from);
}

/*
 * With QEMU's sleep=off the clock of an idle CPU jumps to the next timer. This process uses idle CPU time, so
 * that the clock moves at the speed of instructions while the guest waits for the host. The lab stops it
 * (SIGSTOP) during its commands. It runs blocks of 100 instructions: QEMU leaves a block after each jump.
 */
static void start_busy(void)
{
	struct sched_param none = { 0 };
	pid_t child = fork();
	FILE *file;

	need(child, "fork");
	if (child) {
		file = fopen(BUSY, "w");
		need(file ? 0 : -1, BUSY);
		fprintf(file, "%d\n", child);
		fclose(file);
		return;
	}
	prctl(PR_SET_NAME, "lab_busy");
	need(sched_setscheduler(0, SCHED_IDLE, &none), "SCHED_IDLE");
	for (;;)
		__asm__ volatile(".rept 100\n\tadd $1, %%eax\n\t.endr" ::: "eax", "cc");
}

/*
 * Starts a process that maps the cached pages of these files, since drop_caches leaves mapped pages. Otherwise
 * programs would be in other pages after it. QEMU would translate them again, and remove the old translations
 * one by one when other data are written to the old pages.
 */
static int keep(char *const files[])
{
	int ready[2], fd;
	char byte;

	if (pipe(ready))
		return 1;
	if (fork()) {
		close(ready[1]);
		return read(ready[0], &byte, 1) != 1;
	}
	prctl(PR_SET_NAME, "lab_keep");
	for (; *files; files++) {
		long page = sysconf(_SC_PAGESIZE), n;
		unsigned char *cached;
		struct stat about;
		volatile char *data;

		fd = open(*files, O_RDONLY);
		if (fd < 0 || fstat(fd, &about) || !about.st_size)
			continue;
		data = mmap(NULL, about.st_size, PROT_READ, MAP_SHARED, fd, 0);
		close(fd);
		cached = calloc(about.st_size / page + 1, 1);
		if (data == MAP_FAILED || !cached || mincore((void *)data, about.st_size, cached))
			continue;
		for (n = 0; n * page < about.st_size; n++)
			if (cached[n] & 1)
				(void)data[n * page];
		free(cached);
	}
	if (write(ready[1], "", 1) == 1)
		for (;;)
			pause();
	_exit(1);
}

int main(int count, char *words[])
{
	static char *const command[] = { "/bin/sh", IO, NULL };
	static char *const environment[] = {
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C",
		"TERM=dumb", NULL
	};
	char *program = getenv("LAB_INIT");
	pid_t child;
	int status = 0, fd, rules, engines;

	if (count > 1 && !strcmp(words[1], "keep"))
		return keep(words + 2);
	mkdir("/dev", 0755);
	mkdir("/sys", 0755);
	mkdir("/mnt", 0755);
	mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
	mount("sysfs", "/sys", "sysfs", 0, NULL);
	load_modules();
	rules = open("/rules", O_RDONLY | O_CLOEXEC);
	engines = open("/engines.so", O_RDONLY | O_CLOEXEC);
	fd = program ? -1 : open(IO, O_RDWR);
	if (fd >= 0) {	/* stdin is empty: the script has all commands */
		dup2(open("/dev/null", O_RDONLY), 0);
		dup2(fd, 1);
		dup2(fd, 2);
		close(fd);
	}
	/* noinit_itable: no background writes */
	need(mount("/dev/lab0", "/mnt", "ext4", MS_NOATIME, "noinit_itable"), "mount /dev/lab0");
	need(mount("/dev", "/mnt/dev", NULL, MS_MOVE, NULL), "move /dev");
	need(mount("/sys", "/mnt/sys", NULL, MS_MOVE, NULL), "move /sys");
	need(chdir("/mnt"), "chdir");
	need(mount(".", "/", NULL, MS_MOVE, NULL), "move root");
	need(chroot("."), "chroot");
	need(chdir("/"), "chdir");
	need(mount("proc", "/proc", "proc", 0, NULL), "mount /proc");
	mount("/dev/lab_random", "/dev/urandom", NULL, MS_BIND, NULL);
	need(mount("run", "/run", "tmpfs", 0, "mode=755"), "mount /run");
	need(mount("tmp", "/tmp", "tmpfs", 0, NULL), "mount /tmp");
	mkdir("/run/udev", 0755);
	mkdir("/run/udev/rules.d", 0755);
	copy(rules, "/run/udev/rules.d/60-lab-disk.rules");	/* the image has no rules for these disks */
	copy(engines, "/run/lab-engines.so");
	sethostname("lab", 3);
	if (program) {
		char *const words[] = { program, NULL };

		start_busy();
		execve(program, words, environment);
		need(-1, program);
	}

	child = fork();
	if (!child) {
		setsid();
		execve(command[0], command, environment);
		_exit(127);
	}
	need(child, "fork");
	while (wait(&status) != child)	/* also reaps orphans */
		;
	mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL);
	end(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}
