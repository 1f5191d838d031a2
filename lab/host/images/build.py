"""Builds a guest image from Debian's packages, without root."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from lab.compile.image import build as image_build
from lab.compile.image import log as image_log
from lab.compile.image.build import IMAGE, MODULES, RELEASES, Found, ImageBuild, RootFilesystem
from lab.compile.image.log import Stage
from lab.core.errors import HostError, InputError, LabError, ToolError
from lab.core.printable import printable
from lab.core.units import MIB, is_digits
from lab.host.images import debs as image_debs
from lab.host.images import ext4, sandbox
from lab.host.images import recipes as image_recipes
from lab.host.images import store as image_store
from lab.host.images import workspace as image_workspace
from lab.host.images.sandbox import Box
from lab.host.images.store import Progress
from lab.host.system import process, untrusted
from lab.host.system.clock import now
from lab.model.image.manifest import (
    Image,
    ImageBoot,
    ImageFile,
    ImageManifest,
    ImageSource,
    boot_files,
    contents_digest,
)
from lab.model.image.recipe import Brought, ImageRecipe, recipe_digest

_TOOLS = {
    "mmdebstrap": "mmdebstrap",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "mke2fs": "e2fsprogs",
    "debugfs": "e2fsprogs",
    "qemu-img": "qemu-utils",
    "bwrap": "bubblewrap",
}
_USER_TOOLS = {"newuidmap": "uidmap", "newgidmap": "uidmap"}


def build(
    recipe: ImageRecipe,
    *,
    name: str,
    progress: Progress,
    refresh: bool = False,
    minimum_free: int = image_build.MINIMUM_FREE,
) -> Image:
    """Return the image of this recipe: the existing one, or a new one, in about a minute.

    ``refresh`` builds even if there is one, for newer packages. ``minimum_free``: bytes that must
    be free at the start. An interrupted build leaves no files. ``InputError``: a package of the
    recipe does not exist, or its disk is too small. ``HostError``: a program, a permission, space
    or the archive is missing. ``ToolError``: a package cannot be installed, or the result does not
    match the recipe.
    """
    image_store.check_name(name)
    brought = image_recipes.brought(recipe)
    digest = recipe_digest(recipe, brought)

    def waiting() -> None:
        progress(f"waiting for another process that is building '{name}'", None)

    began = datetime.now(UTC)
    with image_workspace.exclusive(f"build-{name}-{digest[:12]}", waiting=waiting):
        present = image_store.find_by_recipe(name, digest)
        # An image that another process built during the wait is new enough for a refresh.
        wanted = present is not None and (not refresh or present.manifest.built > began)
        if present is not None and wanted and _is_whole(present):
            progress(f"'{present.directory.name}' is there", 1.0)
            return present
        _check_host(name)
        more = image_build.MODULES_FREE if recipe.modules else 0
        image_workspace.check_space(name, minimum_free + more)
        with image_workspace.workspace(name) as work:
            found = _make(recipe, name=name, brought=brought, work=work, progress=progress)
            progress("hashing the files", 0.97)
            facts = {file: _facts(work / "image" / file) for file in _FILES}
            manifest = ImageManifest(
                name=name,
                digest=contents_digest(facts),
                recipe_digest=digest,
                built=datetime.now(UTC),
                source=ImageSource.BUILT,
                boot=ImageBoot.KERNEL,
                files=facts,
                packages=dict(found.packages),
                kernel_version=found.kernel_version,
                mdadm_version=found.packages.get("mdadm"),
                kernel_options=image_build.recorded_options(recipe, found.kernel_config),
                own_modules=found.own_modules,
                releases=found.releases,
                accept_expired=not recipe.check_valid_until,
            )
            logs = [process.tail(work / file) for file in ("build.log", "script.log")]
            (work / "image" / "build.log").write_text("".join(logs), encoding="utf-8")
            image = image_store.publish(work / "image", manifest)
        progress(f"'{image.directory.name}' is built", 1.0)
        return image


_FILES = boot_files(ImageBoot.KERNEL)


def _is_whole(image: Image) -> bool:
    try:
        image_store.verify(image)
    except HostError:
        return False
    return True


def _facts(path: Path) -> ImageFile:
    return ImageFile(size=path.stat().st_size, sha256=image_store.file_sha256(path))


def _make(
    recipe: ImageRecipe, *, name: str, brought: Brought, work: Path, progress: Progress
) -> Found:
    """Build disk, kernel and initrd in ``work/image``, and check them."""
    root = os.geteuid() == 0
    seen = image_build.seen_at(work)
    plan = image_build.compile_build(recipe, brought=brought, work=work, root=root, seen=seen)
    _write(plan, work)
    if recipe.kernel_file:
        shutil.copyfile(recipe.kernel_file, work / "kernel.deb")
    if recipe.package_files:
        for number, file in enumerate(recipe.package_files):
            shutil.copyfile(file, work / image_build.PACKAGES / f"{number}.deb")
        image_debs.write_archive(work / image_build.PACKAGES)
    log, modules_log = work / "build.log", work / "modules.log"
    modules_script_log, script_log = work / "modules-script.log", work / "script.log"
    building = {
        **image_workspace.environment(),
        **image_build.ENVIRONMENT,
        "TMPDIR": str(image_build.seen_at(work) / "tmp"),
    }
    try:
        if plan.modules:
            progress("building kernel modules", 0.0)
            process.run(plan.modules, timeout=3600, log=modules_log, env=building)
            _use_given(brought, work, MODULES)
            (made,) = _finished(MODULES, work, modules_script_log, ("modules",))
            _take_modules(name, made, work / "modules")
            _run(plan.remove_modules_root, work)
        with _following(log, progress):
            process.run(plan.bootstrap, timeout=3600, log=log, env=building)
        progress("making the initrd", 0.80)
        _use_given(brought, work, IMAGE)
        for made, expected in zip(
            _finished(IMAGE, work, script_log, ("found", "image")), _LEFT, strict=True
        ):
            for file, data in _taken(name, made, expected).items():
                (work / made.name / file).write_bytes(data)
        progress("making the file system", 0.90)
        _run(plan.make_disk, work)
        _run(plan.remove_root, work)
        progress("verifying the image", 0.93)
        back = ext4.tree(work / "disk.raw", plan.files["read_back"], work, image=name)
        found = _found(recipe, work, back)
        wrong = image_build.differences(recipe, found, brought.package_files)
        if wrong:
            raise ToolError(f"the image '{name}' does not match its recipe: {'; '.join(wrong)}")
        progress("writing the qcow2 file", 0.94)
        _run(plan.convert, work)
    except (ToolError, HostError) as error:
        text = "".join(
            process.tail(file)
            for file in (modules_log, modules_script_log, log, script_log)
            if file.exists()
        )
        reason = image_log.reason_of(f"{text}\n{error}", suite=recipe.suite, name=name)
        if reason is None:
            raise
        raise reason.error(
            f"the image '{name}' could not be built: {reason.says}", hint=reason.hint
        ) from error
    return found


_LEFT: Final = (
    ("own_modules", "module_files", "kernel", "config", "initrd", "packages"),
    ("kernel", "initrd"),
)
"""Files that `customize.sh` leaves in ``found`` and in ``image``."""
_MOST: Final = 1024 * MIB
"""Most bytes of all of them, and of all modules."""


def _use_given(brought: Brought, work: Path, tree: RootFilesystem) -> None:
    """Replace what apt fetched by the given files: the archive may have the same versions."""
    given = {
        (one.name, one.version): work / image_build.PACKAGES / f"{number}.deb"
        for number, one in enumerate(brought.package_files)
    }
    for deb in sorted((work / tree.debs).glob("*.deb")):
        name, version = image_debs.fields(deb, "Package", "Version")
        if (own := given.get((name, version))) is not None:
            deb.unlink()
            shutil.copyfile(own, deb)


def _finished(
    tree: RootFilesystem, work: Path, log: Path, outputs: tuple[str, ...]
) -> tuple[Path, ...]:
    """Install what the user gives, and run the tree's script, in a sandbox; return its outputs.

    The directories are untrusted.
    """
    left, debs = work / "left", work / tree.debs
    debs.mkdir(exist_ok=True)
    shutil.rmtree(debs / "partial", ignore_errors=True)
    (debs / "lock").unlink(missing_ok=True)
    made = tuple(left / one for one in outputs)
    for place in made:
        place.mkdir(parents=True)
        (work / place.name).mkdir(exist_ok=True)
    box = Box(
        packages=True,
        root="/target",
        read={"/given": work, "/target/mnt": debs},
        write={"/target": work / tree.root, **{f"/given/{one.name}": one for one in made}},
        environment=image_build.ENVIRONMENT,
    )
    sandbox.run(box, ("sh", "-euc", image_build.INSTALL, "-", tree.hook), work=left, log=log)
    return made


def _taken(name: str, made: Path, names: Collection[str]) -> dict[str, bytes]:
    try:
        return sandbox.take(made, names, most=_MOST)
    except InputError as error:
        raise _not_built(name, error) from error


def _not_built(name: str, error: InputError) -> InputError:
    return InputError(f"the image '{name}' could not be built: {error.message}")


def _take_modules(name: str, made: Path, place: Path) -> None:
    """Copy the modules that were built, ``VERSION/NAME.ko``."""
    left = _MOST
    try:
        for version in sandbox.names(made, directories=True):
            names = [one for one in sandbox.names(made / version) if _MODULE.fullmatch(one)]
            (place / version).mkdir(parents=True)
            for file, data in sandbox.take(made / version, names, most=left).items():
                (place / version / file).write_bytes(data)
                left -= len(data)
    except InputError as error:
        raise _not_built(name, error) from error


_MODULE: Final = re.compile(r"[\w-]+\.ko(\.xz|\.zst|\.gz)?")


def _run(argv: tuple[str, ...], work: Path) -> None:
    process.run(argv, timeout=600, env=image_workspace.environment(), cwd=work)


def _write(plan: ImageBuild, work: Path) -> None:
    for directory in ("files", "found", "image", image_build.PACKAGES, "tmp"):
        (work / directory).mkdir()
    for relative, text in plan.files.items():
        path = work / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755 if text.startswith("#!") else 0o644)
    for parent in (work / "files").rglob("*"):
        if parent.is_dir():
            parent.chmod(0o755)


def _found(recipe: ImageRecipe, work: Path, back: Path) -> Found:
    """Return the facts that the hook wrote to ``work/found``, and those of files in the image.

    ``back``: their copies, which are untrusted.
    """
    found = work / "found"
    files, links, keys = dict[str, str](), dict[str, str](), list[str]()
    for path in (*recipe.files, "/etc/machine-id"):
        with suppress(OSError):  # it is missing, or a link
            parts = image_build.read_back_at(path).split("/")
            files[path] = untrusted.read(back, *parts).decode(errors="replace")
    with suppress(OSError):
        links = untrusted.links(back, "etc", "systemd", "system")
    with suppress(OSError):
        ssh = untrusted.entries(back, "etc", "ssh")
        keys = [printable(name) for name in ssh if name.startswith("ssh_host_")]
    return Found(
        packages=image_build.parse_packages((found / "packages").read_text(encoding="utf-8")),
        kernel_version=(found / "kernel").read_text(encoding="utf-8").strip(),
        kernel_config=(found / "config").read_text(encoding="utf-8"),
        releases=image_log.parse_releases((work / RELEASES).read_text(encoding="utf-8")),
        own_modules=tuple((found / "own_modules").read_text(encoding="utf-8").split()),
        module_files=tuple((found / "module_files").read_text(encoding="utf-8").split()),
        initrd=frozenset((found / "initrd").read_text(encoding="utf-8").split("\n")),
        files=files,
        links=links,
        ssh_host_keys=tuple(keys),
    )


def _check_host(name: str) -> None:
    """``HostError`` if something is missing, with the command that fixes it."""
    root = os.geteuid() == 0
    for program, package in (_TOOLS if root else _TOOLS | _USER_TOOLS).items():
        if shutil.which(program, path=image_workspace.environment()["PATH"]) is None:
            raise HostError(
                f"the image '{name}' cannot be built: the program '{program}' is not installed",
                hint=f"apt install {package}",
            )
    if not root:
        user = getpass.getuser()
        for file in (Path("/etc/subuid"), Path("/etc/subgid")):
            if not has_subordinates(file, user):
                raise HostError(
                    f"the image '{name}' cannot be built: the user '{user}' has no subordinate ids "
                    f"in '{file}'",
                    hint="as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 "
                    f"{user}",
                )
    try:
        process.run(
            image_build.namespaced(("true",), root=root),
            env=image_workspace.environment(),
            timeout=20,
        )
    except LabError as error:
        mend = (
            "give the container CAP_SYS_ADMIN"
            if root
            else "as root: sysctl user.max_user_namespaces=10000 "
            "kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0 "
            "(those of them that exist)"
        )
        raise HostError(
            f"the image '{name}' cannot be built: namespaces are not allowed: {error.message}",
            hint=mend,
        ) from error


def has_subordinates(file: Path, user: str) -> bool:
    """Return whether ``subuid(5)`` gives this user enough subordinate ids for a Debian system."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    owners = (user, str(os.getuid()))
    entries = [line.split(":") for line in lines]
    return any(
        len(e) == 3 and e[0] in owners and is_digits(e[2]) and int(e[2]) >= 65535 for e in entries
    )


@contextmanager
def _following(log: Path, progress: Progress) -> Iterator[None]:
    """Report the stages in mmdebstrap's log, from a thread, while the block runs."""
    done = threading.Event()
    broken: list[BaseException] = []

    def follow() -> None:
        stage: Stage | None = None
        entered = now()
        position = 0
        try:
            while not done.wait(0.5):
                if not log.exists():
                    continue
                with log.open(encoding="utf-8", errors="replace") as file:
                    file.seek(position)
                    text = file.read()
                whole = text[: text.rfind("\n") + 1]
                position += len(whole.encode("utf-8", errors="replace"))
                for line in whole.splitlines():
                    begun = image_log.stage_of(line)
                    if begun is not None:
                        stage, entered = begun, now()
                if stage is not None:
                    progress(stage.says, stage.after(now() - entered))
        except BaseException as error:  # raised below, when the command has ended
            broken.append(error)

    thread = threading.Thread(target=follow, name="image-build-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    if broken:
        raise broken[0]
