"""The native engine: its edits to Linux, its command line, and what its digests depend on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drive.native import command, edits
from lab.compile.guest.virtual_time import guest_problems, why_emulated
from lab.compile.image.series import NATIVE, native_tree
from lab.core.errors import InputError
from lab.host.images import native
from lab.host.images import recipes as image_recipes
from lab.model.scenario.guest import Clock, Engine, Guest

SOURCE = {
    "arch/um/os-Linux/util.c": "\treturn getrandom(buf, len, flags);\n"
    '\tsnprintf(buf, len, "%s %s %s %s %s", host.sysname,\n\t\t host.machine);\n',
    "arch/um/kernel/um_arch.c": "\tget_host_cpu_features(parse_host_cpu_flags,"
    " parse_cache_line);\n",
    "arch/um/os-Linux/elf_aux.c": "\t\t\t\telf_aux_hwcap = auxv->a_un.a_val;\n",
    "arch/x86/um/os-Linux/registers.c": "\t\thave_xstate_support = 1;\n",
    "lib/Kconfig.debug": 'config MAGIC_SYSRQ\n\tbool "Magic SysRq key"\n'
    "\tdepends on !UML\n\thelp\n",
    "arch/um/Kconfig": "config HZ\n\tint\n\tdefault 100\n",
    "arch/um/kernel/trap.c": "\tflush_tlb_page(vma, address);\nout:\n"
    "void segv_handler(int sig, struct uml_pt_regs *regs)\n{\n"
    "\tstruct faultinfo * fi = UPT_FAULTINFO(regs);\n\n}\n",
    "arch/um/kernel/skas/syscall.c": "\n\tsyscall = UPT_SYSCALL_NR(r);\n",
    "mm/memory.c": "static unsigned long fault_around_bytes __read_mostly =\n"
    "\trounddown_pow_of_two(65536);\n",
    "arch/um/kernel/process.c": "void fork_handler(void)\n{\n\tforce_flush_all();\n\n}\n",
    "arch/um/kernel/skas/mmu.c": "int init_new_context(struct mm_struct *mm)\n{\n"
    "\t\tpid = copy_context_skas0(stack,\n\t\t\t\t from_mm->id.u.pid);\n}\n",
    "arch/um/os-Linux/skas/process.c": "static void get_skas_faultinfo(int pid, struct faultinfo"
    " *fi, unsigned long *aux_fp_regs)\n{\n\twait_stub_done(pid);\n}\n"
    "int copy_context_skas0(unsigned long new_stack, int pid)\n{\n"
    "\tunsigned long current_stack = current_stub_stack();\n}\n"
    "static int userspace_tramp(void *stack)\n{\n"
    "\tsignal(SIGWINCH, SIG_IGN);\n}\n"
    "\tptrace(PTRACE_SETOPTIONS, pid, NULL,\n\t\t   (void *) PTRACE_O_TRACESYSGOOD);\n",
    "arch/um/os-Linux/time.c": "#include <time.h>\n\tclock_gettime(CLOCK_MONOTONIC,&ts);\n",
    "arch/um/os-Linux/main.c": "int __init main(int argc, char **argv, char **envp)\n{\n"
    "\tchar **new_argv;\n\tint ret, i, err;\n\n\tset_stklim();\n}\n",
    "arch/um/drivers/Makefile": "obj-y += x.o\n\ninclude arch/um/scripts/Makefile.rules\n",
}
"""The lines of Linux 6.1 that the edits look for, and no others."""
STUB = "arch/um/kernel/skas/stub_exe.c"
NEWER = SOURCE | {STUB: "\t/* read information from STDIN and close it */\n"}


def of(source: dict[str, str]) -> Callable[[str], str | None]:
    return source.get


def test_each_edit_is_made() -> None:
    made = edits.edited("6.1", of(SOURCE))
    assert set(made) == set(SOURCE)
    assert all(made[path] != text for path, text in SOURCE.items())
    assert "getrandom(buf" not in made["arch/um/os-Linux/util.c"].replace("lab_user_random(buf", "")
    assert 'snprintf(buf, len, "lab");' in made["arch/um/os-Linux/util.c"]
    assert "depends on !UML" not in made["lib/Kconfig.debug"]
    assert "default 250" in made["arch/um/Kconfig"]
    process = made["arch/um/os-Linux/skas/process.c"]
    assert process.index("SIGWINCH") < process.index("lab_user_hide();")
    assert "wait_stub_done" not in process
    assert "current_stack = lab_empty_stack;" in process
    assert "(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL))" in process
    main = made["arch/um/os-Linux/main.c"]
    assert main.index("lab_user_begin(argv)") < main.index("set_stklim")
    assert "\tsyscall(SYS_clock_gettime, CLOCK_MONOTONIC" in made["arch/um/os-Linux/time.c"]
    assert "lab_native_call(r);" in made["arch/um/kernel/skas/syscall.c"]
    rules = made["arch/um/drivers/Makefile"]
    assert rules.index("lab_disk.o") < rules.index("include")


def test_newer_versions_hide_the_processor_in_their_own_first_program() -> None:
    made = edits.edited("7.3", of(NEWER))
    assert "lab_user_hide" not in made["arch/um/os-Linux/skas/process.c"]
    assert made[STUB].index("PR_TSC_SIGSEGV") < made[STUB].index("read information")


def test_newer_versions_have_few_registers_if_the_processor_is_hidden() -> None:
    registers = "arch/x86/um/os-Linux/registers.c"
    newer = (
        "\tptrace_regset = NT_X86_XSTATE;\n\tret = ptrace(PTRACE_GETREGSET, pid, ptrace_regset,"
        " &iov);\n\tif (ret)\n\t\tret = -errno;\n\n\tif (ret == -ENODEV) {\n"
    )
    made = edits.edited("7.3", of(SOURCE | {registers: newer}))[registers]
    assert "ret = !lab_user_visible ? -ENODEV : ptrace(PTRACE_GETREGSET" in made
    assert "&iov) ? -errno : 0;\n\n\tif (ret == -ENODEV)" in made


@pytest.mark.parametrize("edit", edits.EDITS, ids=lambda edit: edit.why)
def test_an_edit_that_does_not_fit_says_so(edit: edits.Edit) -> None:
    source = dict(NEWER if edit.path == STUB else SOURCE)
    source[edit.path] = f"other text {edit.only_with}\n"
    with pytest.raises(edits.EditError, match=r"of Linux 6\.9 has another text") as error:
        edits.edited("6.9", of(source))
    assert edit.path in str(error.value)


def test_a_missing_file_says_so() -> None:
    source = {path: text for path, text in SOURCE.items() if path != "arch/um/Kconfig"}
    with pytest.raises(edits.EditError, match="Linux 5 has no file arch/um/Kconfig"):
        edits.edited("5", of(source))


def guest(home: str) -> command.Guest:
    return command.Guest(
        kernel=Path(f"{home}/linux"),
        initramfs=Path(f"{home}/initramfs"),
        region=Path(f"{home}/region"),
        base=Path(f"{home}/base"),
    )


def test_the_kernel_sees_no_path_of_the_host() -> None:
    one, other = (command.command(guest(home)) for home in ("/srv/first", "/mnt/other"))
    assert one != other
    kernel = one[one.index("/linux", one.index("--chdir")) + 1 :]
    assert kernel == other[other.index("/linux", other.index("--chdir")) + 1 :]
    assert not any("first" in word for word in kernel)
    assert "time-travel=inf-cpu" in kernel


def test_the_process_gets_four_files_no_network_and_a_fixed_environment() -> None:
    words = command.command(guest("/srv/lab"))
    binds = [words[n + 1] for n, word in enumerate(words) if word in ("--ro-bind", "--bind")]
    assert binds == [f"/srv/lab/{name}" for name in ("linux", "initramfs", "base")]
    assert words[words.index("-") + 1] == "/srv/lab/region"
    assert {"--unshare-all", "--clearenv", "--die-with-parent"} <= set(words)
    assert "--share-net" not in words


def test_further_arguments_come_last() -> None:
    assert command.arguments(256, "a=1 b")[-2:] == ["a=1", "b"]
    assert command.arguments(256)[0] == "mem=256M"


def problems(**given: Any) -> list[str]:
    return [problem.key for problem in guest_problems(Guest(**given))]


def test_the_engine_needs_virtual_time_the_images_kernel_and_no_disturbance() -> None:
    sealed = {"clock": Clock.VIRTUAL, "engine": Engine.NATIVE}
    assert problems(**sealed) == []
    assert problems(engine=Engine.NATIVE) == ["engine"]
    assert problems(**sealed, disturb=True) == ["disturb"]
    assert problems(**sealed, kernel="linux-image-amd64") == ["kernel"]
    assert problems(clock=Clock.VIRTUAL, kernel="linux-image-amd64") == []


@pytest.mark.parametrize(
    "word",
    [
        *("mem=5G", "con1=null,fd:3", "iomem=x,/etc/shadow", "initrd=/x", "time-travel=off"),
        *("lab_base=/x", "lab_disk.stop=1", "random.trust_cpu=on", "init=/bin/sh", "ssl0=port:1"),
        *("ubd0=/etc/passwd", "MEM=5G", "x.y=" + "1" * 201),
    ],
)
def test_a_scenario_gives_no_option_of_the_program(word: str) -> None:
    own: dict[str, Any] = {"clock": Clock.VIRTUAL, "kernel_arguments": (word,)}
    assert problems(**own, engine=Engine.NATIVE) == ["kernel_arguments"]
    assert problems(**own) == []
    assert word in why_emulated(Guest.model_construct(**own, kernel=None), sealed=True)


def test_a_stored_cell_gives_no_option_of_the_program_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bundle's cells are not checked as a scenario is."""
    monkeypatch.setattr(native, "check", lambda: None)
    image: Any = None
    with pytest.raises(InputError, match="does not get 'mem=5G'"):
        native.prepare(Guest.model_construct(kernel_arguments=("mem=5G",)), image, print)


def test_a_scenario_gives_parameters_of_modules() -> None:
    given = ("md_mod.start_ro=1", "raid456.devices_handle_discard_safely=Y", "a.b")
    own: dict[str, Any] = {"clock": Clock.VIRTUAL, "kernel_arguments": given}
    assert problems(**own, engine=Engine.NATIVE) == []


def test_the_process_sees_no_settings_of_the_host_and_has_bounded_memory() -> None:
    words = command.command(guest("/srv/lab"), ["--tmpfs", "/proc/sys"])
    assert {"--disable-userns", "--unshare-user"} <= set(words)
    assert words.index("/proc") < words.index("/proc/sys") < words.index("--chdir")
    mounts = [
        n for n, word in enumerate(words) if word == "--tmpfs" and "/proc" not in words[n + 1]
    ]
    assert [words[n - 2] for n in mounts] == ["--size"] * 2
    assert words[words.index("--remount-ro") + 1] == "/"
    assert "/proc/sys" not in command.command(guest("/srv/lab"))


def test_the_default_engine_is_in_no_digest() -> None:
    assert "engine" not in Guest().model_dump()
    assert Guest(engine=Engine.NATIVE).model_dump()["engine"] == Engine.NATIVE


MANIFEST: Any = SimpleNamespace(
    name="debian-12",
    kernel_version="6.1.0-56-cloud-amd64",
    packages={"linux-image-6.1.0-56-cloud-amd64": "6.1.192-2"},
    own_modules=(),
)


def test_the_source_is_that_of_the_images_kernel() -> None:
    recipe = image_recipes.load("debian-12")[1]
    plan = native_tree(recipe, MANIFEST, "hook")
    assert plan.target == NATIVE
    assert "linux-source-6.1=6.1.192-2" in plan.packages
    newer = SimpleNamespace(**vars(MANIFEST) | {"packages": {}})
    with pytest.raises(InputError, match="is not a Debian package: set guest"):
        native_tree(recipe, newer, "hook")  # type: ignore[arg-type]
    patched = SimpleNamespace(**vars(MANIFEST) | {"own_modules": ("raid456",)})
    with pytest.raises(InputError, match=r"modules of its own \(raid456\)"):
        native_tree(recipe, patched, "hook")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="kernel modules of its own"):
        native_tree(image_recipes.load("debian-12-zfs")[1], MANIFEST, "hook")


def test_a_byte_of_a_source_makes_another_kit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = native_tree(image_recipes.load("debian-12")[1], MANIFEST, "hook")
    for name in (*native.SOURCES, *native.OTHERS):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((native.virtual_time.SOURCES / name).read_bytes())
    before = native.place_of(plan)
    monkeypatch.setattr(native.virtual_time, "SOURCES", tmp_path)
    assert native.place_of(plan) == before  # another checkout
    for name in (*native.SOURCES, *native.OTHERS):
        was = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(was + b"\n")
        assert native.place_of(plan) != before, name
        (tmp_path / name).write_bytes(was)
    assert native.place_of(replace(plan, key="another compiler")) != before


@pytest.mark.parametrize(
    ("flags", "changed", "same"),
    [("fpu cpuid_fault aes", True, True), ("fpu vme cpuid aes", False, False)],
)
def test_a_processor_that_cannot_hide_is_an_input(
    flags: str, changed: bool, same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``changed``: whether it hides its features; ``same``: whether a kit is that of another."""
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(native, "_CPU", cpuinfo)

    def kit(model: str, megahertz: str) -> dict[str, str]:
        text = (
            f"processor\t: 0\nmodel name\t: {model}\ncpu MHz\t\t: {megahertz}\nflags\t\t: {flags}\n"
        )
        cpuinfo.write_text(f"{text}\nprocessor\t: 1\n", encoding="ascii")
        return native.processor_digest()

    assert bool(kit("A", "2100.1")) is not changed
    assert kit("A", "2100.1") == kit("A", "2399.7")  # it changes while the host runs
    assert (kit("A", "2100.1") == kit("B", "2100.1")) is same


def test_programs_that_see_the_processor_have_its_registers() -> None:
    hidden = command.arguments(512)
    assert command.arguments(512, sees_processor=True) == [*hidden, "lab_processor=host"]
