// SPDX-License-Identifier: Apache-2.0
/*
 * First program of a sealed guest: loads the modules of its initramfs, mounts the root file system from
 * /dev/lab0, has the shell do what /dev/lab_io says, notes the exit status and powers off. Static, and
 * without udev and systemd: nothing runs that the commands do not start.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define IO "/dev/lab_io"
#define MODULES "/modules"

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

/* Names begin with two digits that give the order. */
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

int main(void)
{
	static char *const command[] = { "/bin/sh", IO, NULL };
	static char *const environment[] = {
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C",
		"TERM=dumb", NULL
	};
	pid_t child;
	int status = 0, fd;

	mkdir("/dev", 0755);
	mkdir("/sys", 0755);
	mkdir("/mnt", 0755);
	mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
	mount("sysfs", "/sys", "sysfs", 0, NULL);
	load_modules();
	fd = open(IO, O_RDWR);
	if (fd >= 0) {	/* stdin is empty: commands come from the script, and nobody types */
		dup2(open("/dev/null", O_RDONLY), 0);
		dup2(fd, 1);
		dup2(fd, 2);
		close(fd);
	}
	/* noinit_itable: nothing in the background */
	need(mount("/dev/lab0", "/mnt", "ext4", MS_NOATIME, "noinit_itable"), "mount /dev/lab0");
	need(mount("/dev", "/mnt/dev", NULL, MS_MOVE, NULL), "move /dev");
	need(mount("/sys", "/mnt/sys", NULL, MS_MOVE, NULL), "move /sys");
	need(chdir("/mnt"), "chdir");
	need(mount(".", "/", NULL, MS_MOVE, NULL), "move root");
	need(chroot("."), "chroot");
	need(chdir("/"), "chdir");
	need(mount("proc", "/proc", "proc", 0, NULL), "mount /proc");
	need(mount("run", "/run", "tmpfs", 0, "mode=755"), "mount /run");
	need(mount("tmp", "/tmp", "tmpfs", 0, NULL), "mount /tmp");
	sethostname("lab", 3);

	child = fork();
	if (!child) {
		setsid();
		execve(command[0], command, environment);
		_exit(127);
	}
	need(child, "fork");
	while (wait(&status) != child)	/* orphans end here as well */
		;
	mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL);
	end(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}
