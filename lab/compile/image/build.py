"""Compiles an image's recipe to commands that build it, and checks of the result. Pure.

If a recipe has its own modules, ``mmdebstrap`` first fills a directory with compiler, headers and
sources, and ``images/modules.sh`` builds the modules there; then the directory is removed.
``mmdebstrap`` then fills the image's directory with packages of the archive, whose signatures it
checks. Packages that the user gives are fetched with what they need, and not unpacked: that, and
``images/customize.sh``, runs in a sandbox without network (`lab.host.images.sandbox`). ``mke2fs
-d`` makes a file system from it, ``qemu-img`` a qcow2 file, and ``debugfs`` reads files for
verification. All except ``qemu-img`` run in a namespace whose root is the builder, so no step needs
to be root.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

from lab.core import qemu_img
from lab.core.errors import InputError, ToolError
from lab.core.units import MIB
from lab.core.versions import age
from lab.model.image.manifest import RECORDED, ArchiveRelease
from lab.model.image.recipe import (
    KERNEL_PREFIX,
    MDADM_CONF,
    Brought,
    BroughtPackage,
    ImageRecipe,
    ModulesRecipe,
    says_auto_all,
)

KILLED_WITH_US: Final = ("setpriv", "--pdeathsig", "KILL")
"""Ends the namespace even after ``kill -9`` of the lab."""

NAMESPACE: Final = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
"""The host sees no mount, and no process outlives the first one."""

AS_USER: Final = ("--user", "--map-root-user", "--map-auto")
"""The user is root inside, and owns the other users' files through ``/etc/subuid``."""

ENVIRONMENT: Final = {"INITRD": "No", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
"""``INITRD=No``: the kernel's package makes no initrd, since ``customize.sh`` makes it at the
end."""

MINIMUM_FREE: Final = 2500 * MIB
"""Bytes that must be free before a build."""
MODULES_FREE: Final = 2000 * MIB
"""Further bytes that must be free if modules are built."""


_PLAIN: Final = re.compile(r"[\w./+~@-]*", re.ASCII)
"""Paths that apt, dpkg and all their scripts can use."""
INSIDE: Final = Path("/mnt")
"""Where a build sees its working directory if the path of that is not plain: apt's configuration
cannot have a double quote, and some scripts of packages split paths at blanks."""
_BIND: Final = 'mount --bind -- "$1" "$2"; shift 2; exec "$@"'


def seen_at(work: Path) -> Path:
    """Return the path of a working directory inside the namespace of a build."""
    return work if _PLAIN.fullmatch(str(work)) else INSIDE


def bound(argv: tuple[str, ...], work: Path) -> tuple[str, ...]:
    """Return the command, for a namespace, with the directory at :func:`seen_at`."""
    if (inside := seen_at(work)) == work:
        return argv
    return ("sh", "-euc", _BIND, "-", str(work), str(inside), *argv)


def namespaced(argv: tuple[str, ...], *, root: bool) -> tuple[str, ...]:
    """Return the command with a namespace of its own; ``root``: the lab itself runs as root."""
    return (*KILLED_WITH_US, *NAMESPACE, *(() if root else AS_USER), "--", *argv)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageBuild:
    """Files and commands of a build, in this order."""

    files: Mapping[str, str]
    """Text by path below the working directory, written before the first command."""
    modules: tuple[str, ...]
    """Command that builds the recipe's modules and leaves them in ``modules/``; empty: none."""
    remove_modules_root: tuple[str, ...]
    bootstrap: tuple[str, ...]
    make_disk: tuple[str, ...]
    remove_root: tuple[str, ...]
    """Removes the directory once the file system is made from it."""
    convert: tuple[str, ...]


def compile_build(
    recipe: ImageRecipe,
    *,
    brought: Brought,
    work: Path,
    root: bool = False,
    seen: Path | None = None,
) -> ImageBuild:
    """Return the commands that build this recipe below ``work``; ``root`` as in `namespaced`.

    ``seen``: its path in the namespace, :func:`seen_at`.

    The user's own kernel is expected at ``work/kernel.deb``.
    """
    files = {f"files{path}": text for path, text in recipe.files.items()}
    files |= brought.hooks
    pinned = {one.name: one.version for one in brought.package_files}
    files |= {
        "enabled": _lines(recipe.enabled_units),
        "masked": _lines(recipe.masked_units),
        "script": recipe.script,
        "read_back": _lines(
            ("rdump /etc /out", *(f"dump {p} /out/{_flat(p)}" for p in _elsewhere(recipe)))
        ),
    }
    kernel = () if recipe.kernel_file else (of_kernel_suite(recipe, recipe.kernel_package, pinned),)
    packages = tuple(_pinned(name, pinned) for name in recipe.packages)
    modules: tuple[str, ...] = ()
    inside = seen or work

    def made(argv: tuple[str, ...]) -> tuple[str, ...]:
        return namespaced(bound(argv, work) if seen else argv, root=root)

    if recipe.modules is not None:
        files |= _module_files(recipe.modules, brought)
        needed = _needed(recipe, recipe.modules, pinned)
        modules = made(_archives(recipe, needed, pinned, MODULES, inside))
    return ImageBuild(
        files=files,
        modules=modules,
        remove_modules_root=namespaced(("rm", "-rf", f"{work}/{MODULES.root}"), root=root),
        bootstrap=made(_archives(recipe, (*kernel, *packages), pinned, IMAGE, inside)),
        make_disk=made(
            (
                *("mke2fs", "-q", "-F", "-t", "ext4", "-L", "root", "-m", "0"),
                *("-d", f"{inside}/{IMAGE.root}", f"{inside}/disk.raw"),
                f"{recipe.disk_size // MIB}M",
            )
        ),
        remove_root=namespaced(("rm", "-rf", f"{work}/{IMAGE.root}"), root=root),
        convert=qemu_img.convert(
            f"{work}/disk.raw", qemu_img.RAW, f"{work}/image/disk.qcow2", qemu_img.QCOW2
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RootFilesystem:
    """A root file system that a build makes."""

    root: str
    hook: str
    """Script of the lab that is run in it once all packages are installed."""

    @property
    def debs(self) -> str:
        """Directory below the working directory for packages that the user gives."""
        return f"{self.root}-debs"


IMAGE: Final = RootFilesystem(root="root", hook="customize.sh")
MODULES: Final = RootFilesystem(root="modules-root", hook="modules.sh")
HOOKS: Final = (IMAGE.hook, MODULES.hook)


def _archives(
    recipe: ImageRecipe,
    words: tuple[str, ...],
    pinned: Mapping[str, str],
    tree: RootFilesystem,
    work: Path,
) -> tuple[str, ...]:
    """Return mmdebstrap's command line for a tree with the archive's packages of these.

    Those that the user gives are fetched to ``tree.debs``. mmdebstrap does not know them before all
    else is installed: one that says it is an essential package would be unpacked by it.
    """
    given = tuple(word for word in words if word.partition("=")[0] in pinned)
    own = tuple(word for word in words if word not in given)
    debs = shlex.quote(f"{work}/{tree.debs}")
    fetch = (
        'set -eu; export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"; '
        f"{further_archive(work / PACKAGES)}; mkdir -p {debs}/partial; "
        "apt-get update --error-on=any; "
        "apt-get --yes --allow-downgrades --download-only --option Dir::Cache::archives="
        f"{debs}/ install {shlex.join(given)}; "
        'rm "$1"/etc/apt/sources.list.d/packages.list'
    )
    return bootstrap(recipe, own, tree, work, (fetch,) if given else ())


def hook_of(tree: RootFilesystem, work: Path) -> str:
    """Return shell lines that run the tree's script in mmdebstrap."""
    return shlex.join(["sh", f"{work}/{tree.hook}"]) + f' "$1" {shlex.quote(str(work))}'


def bootstrap(
    recipe: ImageRecipe,
    packages: tuple[str, ...],
    tree: RootFilesystem,
    work: Path,
    hooks: tuple[str, ...],
) -> tuple[str, ...]:
    """Return mmdebstrap's command line for a tree with these packages of the recipe's archive.

    ``hooks``: shell lines that are run at the end, with the archive's lists and the network.
    """
    for word in packages:
        if not _PACKAGE.fullmatch(word):  # apt takes a word that begins with - for an option
            raise InputError(f"'{word}' is no package of an archive: write NAME, or NAME=VERSION")
    releases = (
        f'{_RELEASES} "$1"/var/lib/apt/lists/*Release > {shlex.quote(str(work))}/{RELEASES} || :'
    )
    valid_until = (
        () if recipe.check_valid_until else ('--aptopt=Acquire::Check-Valid-Until "false"',)
    )
    return (
        "mmdebstrap",
        "--mode=root",
        "--format=directory",
        f"--variant={recipe.variant}",
        f"--components={','.join(recipe.components)}",
        f"--include={','.join(packages)}",
        *(f"--dpkgopt=path-exclude={path}" for path in recipe.excluded_paths),
        *valid_until,
        *((f"--setup-hook={_further_suite(recipe)}",) if recipe.kernel_suite else ()),
        f"--customize-hook={releases}",
        *(f"--customize-hook={hook}" for hook in hooks),
        recipe.suite,
        f"{work}/{tree.root}",
    )


_PACKAGE: Final = re.compile(
    r"[a-z0-9][a-z0-9+.-]*(:[a-z0-9]+)?(=[A-Za-z0-9][A-Za-z0-9+.~:-]*)?(/[a-z0-9][a-z0-9.-]*)?"
)
"""An argument of ``apt-get install``, ``apt-get(8)``."""
INSTALL: Final = """
printf '#!/bin/sh\\nexit 101\\n' >/target/usr/sbin/policy-rc.d
chmod 0755 /target/usr/sbin/policy-rc.d
if [ -n "$(ls /target/mnt)" ]; then chroot /target sh -euc 'dpkg --install /mnt/*.deb'; fi
sh "/given/$1" /target /given
rm /target/usr/sbin/policy-rc.d
"""
"""Shell lines for the sandbox: install what the user gives, without starting services, and run the
tree's script."""
PACKAGES: Final = "packages"
"""Directory below the working directory with the recipe's ``package_files``."""
RELEASES: Final = "found/releases"
"""File below the working directory with the dates of the archive's Release files."""
_RELEASES: Final = "grep -ahE '^(Suite|Codename|Date|Valid-Until):'"


def _further_suite(recipe: ImageRecipe) -> str:
    """Return shell lines that add the kernel's suite, from the archive of the image's own suite.

    ``sources.list`` is mmdebstrap's, ``deb [OPTIONS] URI SUITE COMPONENTS`` on each line.
    """
    pattern = rf"s|^\(deb .*\) {recipe.suite} \(.*\)$|\1 {recipe.kernel_suite} \2|p"
    added = '"$1"/etc/apt/sources.list.d/kernel.list'
    return f'sed -n {shlex.quote(pattern)} "$1"/etc/apt/sources.list > {added}; test -s {added}'


def further_archive(directory: Path) -> str:
    """Return shell lines that add a directory with the file ``Packages`` to the archives.

    Its packages have no signature; the lab has checked their hashes.
    """
    line = f"deb [trusted=yes] copy:{quote(str(directory))} ./"
    return f'echo {shlex.quote(line)} > "$1"/etc/apt/sources.list.d/packages.list'


def _pinned(package: str, pinned: Mapping[str, str]) -> str:
    """Return the package as an argument for apt, with the version of the file that is used."""
    return f"{package}={pinned[package]}" if package in pinned else package


def of_kernel_suite(
    recipe: ImageRecipe, package: str, pinned: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return the package as an argument for apt; without ``/SUITE`` apt takes the image's own."""
    if package in pinned or not recipe.kernel_suite:
        return _pinned(package, pinned)
    return f"{package}/{recipe.kernel_suite}"


def _needed(
    recipe: ImageRecipe, modules: ModulesRecipe, pinned: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the packages for building modules; the headers depend on their compiler."""
    headers = f"linux-headers-{recipe.kernel_package.removeprefix(KERNEL_PREFIX)}"
    tools = () if modules.dkms else ("make", "patch", "xz-utils")
    source = modules.source if modules.dkms else of_kernel_suite(recipe, modules.source, pinned)
    return (of_kernel_suite(recipe, headers, pinned), source, *tools, *modules.packages)


def _module_files(modules: ModulesRecipe, brought: Brought) -> dict[str, str]:
    """Return the files that ``modules.sh`` reads."""
    return {
        "source": f"{modules.source}\n",
        "options": _lines(tuple(f"{k}={v}" for k, v in modules.options.items())),
        "build": _lines(modules.build),
        **{f"patches/{n:04}": text for n, text in enumerate(brought.patches, 1)},
    }


def _lines(words: tuple[str, ...]) -> str:
    return "".join(f"{word}\n" for word in words)


def _elsewhere(recipe: ImageRecipe) -> list[str]:
    return [path for path in recipe.files if not path.startswith("/etc/")]


def _flat(path: str) -> str:
    return "file" + path.replace("/", "!")


def read_back_at(path: str) -> str:
    """Return the path below ``/out`` with a copy of this file of the image."""
    return path.lstrip("/") if path.startswith("/etc/") else _flat(path)


# --- the result -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Facts from a built image."""

    packages: Mapping[str, str]
    """Version by name."""
    kernel_version: str
    kernel_config: str
    """The kernel's ``.config``."""
    releases: tuple[ArchiveRelease, ...]
    """The Release files of its archive."""
    own_modules: tuple[str, ...]
    """Names of the modules that were built for the image."""
    module_files: tuple[str, ...]
    """File from which the kernel would load each of them."""
    initrd: frozenset[str]
    """Paths in the initrd, without a leading slash."""
    files: Mapping[str, str]
    """Content by absolute path, of the recipe's files and of ``/etc/machine-id``."""
    links: Mapping[str, str]
    """Target of each symbolic link in ``/etc/systemd/system``, by its name."""
    ssh_host_keys: tuple[str, ...]


def parse_packages(text: str) -> dict[str, str]:
    """Return versions by name, from ``dpkg-query``'s lines ``name TAB version``."""
    packages = {}
    for line in text.splitlines():
        name, tab, version = line.partition("\t")
        if not (name and tab and version):
            raise ToolError(f"'dpkg-query' printed the line '{line}' instead of name and version")
        packages[name] = version
    if not packages:
        raise ToolError("'dpkg-query' listed no package in the image")
    return packages


def recorded_options(recipe: ImageRecipe, config: str) -> dict[str, str]:
    """Return the kernel options to record with an image, as its modules see them."""
    options = dict(re.findall(r"^(CONFIG_\w+)=(.+)$", config, flags=re.MULTILINE))
    if not options:
        raise ToolError("the kernel's configuration in the image's /boot is empty")
    own = recipe.modules.options if recipe.modules else {}
    whole = {k: v.strip('"') for k, v in {**options, **own}.items()}
    return {k: v for k, v in sorted(whole.items()) if RECORDED.fullmatch(k) and v != "n"}


def differences(
    recipe: ImageRecipe, found: Found, given: Sequence[BroughtPackage] = ()
) -> list[str]:
    """Return differences of the image from its recipe; empty: none."""
    wrong = [
        f"the package '{name}' is not installed"
        for name in (*(() if recipe.kernel_file else (recipe.kernel_package,)), *recipe.packages)
        if name not in found.packages
    ]
    wrong += [
        f"'{one.name}' is {here}, and the given file has {one.version}"
        for one in given
        if (here := found.packages.get(one.name, one.version)) != one.version
        # A kernel of an older release needs this version of it or a newer one.
        and not (one.name == "linux-base" and age(here) > age(one.version))
    ]
    for path, text in recipe.files.items():
        if path not in found.files:
            wrong.append(f"the file '{path}' is missing")
        elif found.files[path] != text:
            wrong.append(f"the file '{path}' has another content")
    wrong += [
        f"the unit '{unit}' is not masked"
        for unit in recipe.masked_units
        if found.links.get(unit) != "/dev/null"
    ]
    wrong += [f"the SSH host key '{key}' is in the image" for key in found.ssh_host_keys]
    if found.files.get("/etc/machine-id") != "":
        wrong.append("'/etc/machine-id' is not empty")
    if not found.kernel_version:
        wrong.append("there is no kernel")
    if not any(path.startswith(("usr/lib/modules/", "lib/modules/")) for path in found.initrd):
        wrong.append("the initrd has no kernel modules")
    wrong += [
        f"'{file}' would be loaded, and not the module that was built"
        for file in found.module_files
        if "/updates/" not in file
    ]
    if recipe.modules and not found.own_modules:
        wrong.append(f"no module of '{recipe.modules.source}' is in it")
    compilers = sorted(name for name in found.packages if re.fullmatch(r"(gcc|cpp)-\d+", name))
    if compilers and not set(compilers) & set(recipe.packages):
        wrong.append(f"the compiler '{compilers[0]}' has stayed in it")
    if "mdadm" in recipe.packages:
        if not says_auto_all(found.files.get(MDADM_CONF, "")):
            wrong.append(f"'{MDADM_CONF}' does not say 'AUTO -all'")
        if any(path.endswith("sbin/mdadm") for path in found.initrd):
            wrong.append("the initrd holds mdadm, which would assemble arrays by itself")
    return wrong
