"""Changes to the source of Linux that make User-Mode Linux a guest in virtual time. Pure.

Each is a pattern and its replacement, so that the same change fits Linux 6.1 to 7.3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final


class EditError(ValueError):
    """A version of Linux has another text than expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A change to one file."""

    path: str
    why: str
    pattern: str
    """A regular expression, which must match."""
    new: str
    only_with: str = ""
    """The change is needed only if the file contains this."""
    unless_file: str = ""
    """The change is not needed if this file exists."""


_STUB: Final = "arch/um/kernel/skas/stub_exe.c"
"""The first program of a process; before Linux 6.13 a function of process.c did this."""
_DECLARED: Final = "\t{\n\t\tvoid lab_user_hide(void);\n\n\t\tlab_user_hide();\n\t}\n"

_REGISTERS: Final = "arch/x86/um/os-Linux/registers.c"
_FEW_REGISTERS: Final = (
    "programs that cannot see AVX have the registers of SSE only, 512 bytes; with AMX a stop moves"
    " 11 KiB"
)
_EMPTY: Final = """\
unsigned long lab_empty_stack;

/* Returns a process of the host without pages. */
static int lab_empty(void)
{
	static int pid;
	struct mm_id id = {};
	void *data = NULL;

	if (pid)
		return pid;
	lab_empty_stack = get_zeroed_page(GFP_KERNEL);
	if (!lab_empty_stack)
		return -ENOMEM;
	id.stack = lab_empty_stack;
	id.u.pid = start_userspace(lab_empty_stack);
	if (id.u.pid < 0)
		return id.u.pid;
	if (unmap(&id, 0, TASK_SIZE, 1, &data))
		panic("lab: an empty process");
	pid = id.u.pid;
	return pid;
}

"""

EDITS: Final = (
    Edit(
        path="arch/um/os-Linux/util.c",
        why="Linux seeds its random numbers from this",
        pattern=r"\treturn getrandom\(buf, len, flags\);",
        new="\textern long lab_user_random(void *buffer, unsigned long size);\n\n"
        "\treturn lab_user_random(buf, len);",
    ),
    Edit(
        path="arch/um/os-Linux/util.c",
        why="/proc/cpuinfo names the host and its kernel",
        pattern=r'snprintf\(buf, len, "%s %s %s %s %s",[^;]*;',
        new='snprintf(buf, len, "lab");',
    ),
    Edit(
        path="arch/um/kernel/um_arch.c",
        why="Linux chooses its functions by the features of the host's processor",
        pattern=r"\tget_host_cpu_features\(parse_host_cpu_flags, parse_cache_line\);",
        new="\t(void)parse_host_cpu_flags;\n\t(void)parse_cache_line;",
    ),
    Edit(
        path="arch/um/os-Linux/elf_aux.c",
        why="programs get the features of the host's processor",
        pattern=r"elf_aux_hwcap = auxv->a_un\.a_val;",
        new="elf_aux_hwcap = 0;",
    ),
    Edit(
        path=_REGISTERS,
        why=_FEW_REGISTERS,
        pattern=r"have_xstate_support = 1;",
        new="{\n\t\textern int lab_user_visible;\n\n"
        "\t\thave_xstate_support = lab_user_visible;\n\t}",
        only_with="have_xstate_support",
    ),
    Edit(
        path=_REGISTERS,
        why=_FEW_REGISTERS,
        pattern=r"(ptrace_regset = NT_X86_XSTATE;\n)\tret = (ptrace\(PTRACE_GETREGSET, pid,"
        r" ptrace_regset, &iov\));\n\tif \(ret\)\n\t\tret = -errno;",
        new=r"\1\textern int lab_user_visible;\n\n"
        r"\tret = !lab_user_visible ? -ENODEV : \2 ? -errno : 0;",
        only_with="ptrace_regset",
    ),
    Edit(
        path="arch/um/os-Linux/skas/process.c",
        why="a page fault needs no second stop: the kernel knows what the page is for",
        pattern=r"static void get_skas_faultinfo\(int pid, struct faultinfo \*fi(, unsigned long"
        r" \*aux_fp_regs)?\)\n\{.*?\n\}\n",
        new=r"""static void get_skas_faultinfo(int pid, struct faultinfo *fi\1)
{
	void lab_native_fault(struct faultinfo *fi, int code, unsigned long address);
	siginfo_t si;

	if (ptrace(PTRACE_GETSIGINFO, pid, 0, &si) < 0)
		fatal_sigsegv();
	lab_native_fault(fi, si.si_code, (unsigned long)si.si_addr);
}
""",
    ),
    Edit(
        path="arch/um/kernel/trap.c",
        why="pages that the kernel has found around a fault need no faults of their own",
        pattern=r"\tflush_tlb_page\(vma, address\);\nout:",
        new="\tflush_tlb_range(vma, max(vma->vm_start, address & ~0xffffful),\n"
        "\t\t\tmin(vma->vm_end, (address | 0xffffful) + 1));\nout:",
        only_with="flush_tlb_page",
    ),
    Edit(
        path="mm/memory.c",
        why="pages that the kernel has found around a fault need no faults of their own",
        pattern=r"(fault_around_bytes __read_mostly =\n\trounddown_pow_of_two)\(65536\);",
        new=r"\1(1 << 20);",
        only_with="fault_around_bytes __read_mostly",
    ),
    Edit(
        path="arch/um/kernel/process.c",
        why="a new process begins without pages: those that it uses are mapped when it does",
        pattern=r"\tforce_flush_all\(\);\n",
        new="",
        only_with="force_flush_all",
    ),
    Edit(
        path="arch/um/kernel/skas/mmu.c",
        why="a new process is the copy of an empty one, not of its parent with all pages",
        pattern=r"(int init_new_context\(.*?)copy_context_skas0\(stack,\s+from_mm->id\.u\.pid\)",
        new=_EMPTY + r"\1copy_context_skas0(stack, lab_empty())",
        only_with="copy_context_skas0",
    ),
    Edit(
        path="arch/um/os-Linux/skas/process.c",
        why="a new process is the copy of an empty one, not of its parent with all pages",
        pattern=r"(int copy_context_skas0\([^{]*\{.*?)current_stub_stack\(\);",
        new=r"extern unsigned long lab_empty_stack;\n\n\1lab_empty_stack;",
        only_with="copy_context_skas0",
    ),
    Edit(
        path="lib/Kconfig.debug",
        why="a power cut is `echo b >/proc/sysrq-trigger`",
        pattern=r'(config MAGIC_SYSRQ\n\tbool "Magic SysRq key"\n)\tdepends on !UML\n',
        new=r"\1",
    ),
    Edit(
        path="arch/um/Kconfig",
        why="Debian's kernels have 250 ticks in a second",
        pattern=r"(config HZ\n\tint\n\tdefault )100\n",
        new=r"\g<1>250\n",
    ),
    Edit(
        path="arch/um/kernel/trap.c",
        why="programs that read processor or time stamp counter read the guest's",
        pattern=r"(void segv_handler\([^{]*\{\n\tstruct faultinfo \* ?fi = UPT_FAULTINFO"
        r"\(regs\);\n)",
        new=r"\1\tbool lab_native_instruction(struct uml_pt_regs *regs);\n\n"
        r"\tif (UPT_IS_USER(regs) && lab_native_instruction(regs))\n\t\treturn;\n",
    ),
    Edit(
        path="arch/um/kernel/skas/syscall.c",
        why="a program that moves data does not wait for the time stamp counter that it reads",
        pattern=r"(\n\tsyscall = UPT_SYSCALL_NR\(r\);\n)",
        new=r"\1\t{\n\t\tvoid lab_native_call(struct uml_pt_regs *regs);\n\n"
        r"\t\tlab_native_call(r);\n\t}\n",
    ),
    Edit(
        path="arch/um/os-Linux/skas/process.c",
        why="these instructions trap in programs",
        pattern=r"(static int userspace_tramp\(.*?\tsignal\(SIGWINCH, SIG_IGN\);\n)",
        new=rf"\1{_DECLARED}",
        unless_file=_STUB,
    ),
    Edit(
        path=_STUB,
        why="these instructions trap in programs",
        pattern=r"(\t/\* read information from STDIN)",
        new="\t/* ARCH_SET_CPUID: it fails where lab_user_begin() accepts that */\n"
        "\tstub_syscall2(__NR_arch_prctl, 0x1012, 0);\n"
        "\tif (stub_syscall5(__NR_prctl, PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0))\n"
        r"\t\tstub_syscall1(__NR_exit, 9);" + "\n\n" + r"\1",
    ),
    Edit(
        path="arch/um/os-Linux/skas/process.c",
        why="a killed guest's programs would go on as programs of the host",
        pattern=r"\(void \*\) ?PTRACE_O_TRACESYSGOOD\)",
        new="(void *) (PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL))",
    ),
    Edit(
        path="arch/um/os-Linux/time.c",
        why="the time stamp counter is hidden from Linux too, and the C library would read it",
        pattern=r"\bclock_gettime\(",
        new="syscall(SYS_clock_gettime, ",
    ),
    Edit(
        path="arch/um/os-Linux/time.c",
        why="the call of the system has a declaration",
        pattern=r"#include <time\.h>\n",
        new="#include <time.h>\n#include <unistd.h>\n#include <sys/syscall.h>\n",
    ),
    Edit(
        path="arch/um/os-Linux/main.c",
        why="addresses are the same on every host",
        pattern=r"(int __init main\([^)]*\)\n\{\n\tchar \*\*new_argv;\n\tint ret, i, err;\n)",
        new=r"\1\tvoid lab_user_begin(char **argv);\n\n\tlab_user_begin(argv);\n",
    ),
    Edit(
        path="arch/um/drivers/Makefile",
        why="the driver of the guest's disks is part of its kernel",
        pattern=r"\n(include [^\n]*arch/um/scripts/Makefile\.rules)",
        new=r"\nobj-y += lab_disk.o lab_native.o lab_user.o\n\n\1",
    ),
)
FILES: Final = tuple(dict.fromkeys(edit.path for edit in EDITS))


def edited(version: str, read: Callable[[str], str | None]) -> Mapping[str, str]:
    """Return the changed files by path; ``read`` returns a file of the source, ``None`` if it has
    none.

    ``EditError``: a change does not fit this version.
    """
    texts = {path: read(path) for path in FILES}
    for edit in EDITS:
        text = texts[edit.path]
        if edit.path == _STUB and text is None:
            continue
        if edit.unless_file and texts[edit.unless_file] is not None:
            continue
        if text is None:
            raise EditError(f"Linux {version} has no file {edit.path} ({edit.why})")
        if edit.only_with and edit.only_with not in text:
            continue
        changed, count = re.subn(edit.pattern, edit.new, text, flags=re.DOTALL)
        if not count:
            raise EditError(
                f"{edit.path} of Linux {version} has another text than expected: nothing matches"
                f" {edit.pattern!r} ({edit.why})"
            )
        texts[edit.path] = changed
    return {path: text for path, text in texts.items() if text is not None}
