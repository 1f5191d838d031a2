"""The filter of system calls of native guests, classic BPF, ``seccomp(2)``.

Root in a native guest may break into its kernel, a program of the host. What that program never
calls is refused there: memory that belongs to no process and to none of its limits, sockets (those
of a virtual machine know no network namespace), namespaces, mounts, keys, and further parts of the
host's kernel. System calls of the guest's own programs do not reach the host.
"""

from __future__ import annotations

import errno
import re
import struct
from typing import Final

_NUMBERS: Final = """
    shmget 29 shmat 30 shmctl 31 semget 64 msgget 68 mq_open 240 memfd_create 319 memfd_secret
    447 userfaultfd 323 process_madvise 440 socket 41 pidfd_open 434 pidfd_getfd 438 kcmp 312
    process_vm_readv 310 process_vm_writev 311 io_uring_setup 425 io_uring_enter 426
    io_uring_register 427 io_setup 206 io_submit 209 vmsplice 278 splice 275 tee 276 unshare
    272 setns 308 mount 165 umount2 166 pivot_root 155 open_tree 428 move_mount 429 fsopen 430
    fsconfig 431 fsmount 432 fspick 433 mount_setattr 442 chroot 161 mknod 133 mknodat 259
    open_by_handle_at 304 name_to_handle_at 303 fanotify_init 300 keyctl 250 add_key 248
    request_key 249 bpf 321 perf_event_open 298 init_module 175 finit_module 313 delete_module
    176 kexec_load 246 kexec_file_load 320 quotactl 179 quotactl_fd 443 swapon 167 swapoff 168
    acct 163 reboot 169 syslog 103 iopl 172 ioperm 173 sysfs 139 settimeofday 164
    clock_settime 227 adjtimex 159 clock_adjtime 305 sethostname 170 setdomainname 171 mbind
    237 set_mempolicy 238 move_pages 279 migrate_pages 256 lookup_dcookie 212 uselib 134
"""
REFUSED: Final = {name: int(number) for name, number in re.findall(r"(\w+)\s(\d+)", _NUMBERS)}
"""By name: numbers on x86-64, the only processor that native guests have."""
_MMAP: Final = 9
_SHARED_ANONYMOUS: Final = 0x21
"""``MAP_SHARED | MAP_ANONYMOUS``: memory that is no process's own."""
_ARCHITECTURE: Final = 0xC000003E  # AUDIT_ARCH_X86_64
_X32: Final = 0x40000000
_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER_AT, _ARCHITECTURE_AT, _FLAGS_AT = 0, 4, 40
"""Places in ``struct seccomp_data``; flags are the fourth argument's lower half."""
_SECTOR: Final = 64
"""Instructions of 512 bytes: files in memory are filled up to that."""


def native_filter() -> bytes:
    """Return the program, ``struct sock_filter[]``, whose size is a multiple of 512 bytes."""

    def one(code: int, value: int, true: int = 0, false: int = 0) -> bytes:
        return struct.pack("<HBBI", code, true, false, value)

    refuse = one(_RETURN, _ERROR | errno.EPERM)
    allow = one(_RETURN, _ALLOW)
    program = [
        one(_LOAD, _ARCHITECTURE_AT),
        one(_EQUAL, _ARCHITECTURE, true=1),
        one(_RETURN, _KILL),
        one(_LOAD, _NUMBER_AT),
        one(_AT_LEAST, _X32, false=1),
        one(_RETURN, _KILL),
        one(_EQUAL, _MMAP, false=5),
        one(_LOAD, _FLAGS_AT),
        one(_AND, _SHARED_ANONYMOUS),
        one(_EQUAL, _SHARED_ANONYMOUS, false=1),
        refuse,
        allow,
    ]
    for number in sorted(REFUSED.values()):
        program += [one(_EQUAL, number, false=1), refuse]
    program.append(allow)
    program += [allow] * (-len(program) % _SECTOR)
    return b"".join(program)
