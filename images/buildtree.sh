#!/bin/sh
# Keeps a root file system with compiler and headers that mmdebstrap has just filled, in which the lab
# builds md's modules, mdadm or a kernel from changed sources again and again; its customize hook.
#   buildtree.sh ROOT WORK
# WORK says what is built (target, version) and gets the unpacked source, source.tar.
set -eu
umask 022
root=$1
work=$2
version=$(cat "$work/version")

fail() {
    echo "buildtree: $*" >&2
    exit 1
}

# shellcheck disable=SC2016 # dpkg-query's own field
of() { chroot "$root" dpkg-query -W -f '${Version}' "$1"; }

case $(cat "$work/target") in
md)
    # linux-source is the newest of its kind: it must be the source of the image's kernel.
    set -- "$root"/usr/src/linux-source-*.tar.xz
    [ $# -eq 1 ] && [ -e "$1" ] || fail "linux-source holds no kernel's source"
    package=${1##*/}
    package=${package%.tar.xz}
    found=$(of "$package")
    wanted=$(of "linux-headers-$version")
    [ "$found" = "$wanted" ] || fail "$package is $found and the kernel's headers are $wanted"
    mkdir "$root/source"
    chroot "$root" tar -C /source --strip-components=1 -xf "/usr/src/$package.tar.xz" \
        "$package/drivers/md"
    rm "$root/usr/src/$package.tar.xz"
    ;;
native)
    # The package's version is in its name for apt.
    set -- "$root"/usr/src/linux-source-*.tar.xz
    [ $# -eq 1 ] && [ -e "$1" ] || fail "linux-source holds no kernel's source"
    package=${1##*/}
    package=${package%.tar.xz}
    # A sixth of Linux: what a program is built from, and all that `make` and its configuration read.
    set -- Kbuild Kconfig Makefile '*/Kbuild*' '*/Kconfig*' '*/Makefile*' arch/um arch/x86 block \
        certs crypto drivers/base drivers/block drivers/char drivers/md drivers/net/loopback.c \
        drivers/tty fs include init io_uring ipc kernel lib mm net scripts security tools/include \
        usr virt
    for path; do
        set -- "$@" "$package/$path"
        shift
    done
    mkdir "$root/source"
    chroot "$root" tar -C /source --strip-components=1 --wildcards -xf "/usr/src/$package.tar.xz" "$@"
    rm "$root/usr/src/$package.tar.xz"
    ;;
mdadm)
    # The image has one archive, and mmdebstrap wrote it: `deb [OPTIONS] URI SUITE COMPONENTS`.
    sed -n 's/^deb /deb-src /p' "$root/etc/apt/sources.list" \
        >"$root/etc/apt/sources.list.d/source.list"
    chroot "$root" apt-get update
    chroot "$root" apt-get build-dep --yes --no-install-recommends mdadm
    mkdir "$root/unpacked"
    chroot "$root" sh -euc "cd /unpacked && apt-get source --only-source 'mdadm=$version'" ||
        fail "the archive has no source of mdadm $version"
    set -- "$root"/unpacked/mdadm-*/
    [ $# -eq 1 ] && [ -d "$1" ] || fail "the source of mdadm $version was not unpacked"
    mv "$1" "$root/source"
    rm -r "$root/unpacked"
    # Debian's patches are applied; quilt's record of them is no part of the source.
    rm -rf "$root/source/.pc"
    ;;
linux)
    # The source is the user's repository.
    mkdir "$root/source"
    ;;
esac
tar -C "$root/source" -cf "$work/source.tar" .
rm -r "$root/source"
mkdir "$root/build"
