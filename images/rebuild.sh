#!/bin/sh
# Builds md's modules or mdadm from a source, in a root file system that buildtree.sh has kept.
#   rebuild.sh ROOT SOURCE OUT TARGET VERSION
# It needs a mount namespace of its own: SOURCE is always /build in there, so that equal sources give
# equal files. OUT gets what was built.
set -eu
umask 022
root=$1
source=$2
out=$3
target=$4
version=$5
mount --bind "$source" "$root/build"
mount -t proc proc "$root/proc"

case $target in
md)
    headers=/usr/src/linux-headers-$version
    conf=$root$(chroot "$root" readlink -e "$headers/include/config/auto.conf")
    modules=
    for pair in BLK_DEV_MD:md-mod MD_LINEAR:linear MD_MULTIPATH:multipath MD_FAULTY:faulty \
        MD_RAID0:raid0 MD_RAID1:raid1 MD_RAID10:raid10 MD_RAID456:raid456; do
        if grep -qx "CONFIG_${pair%:*}=m" "$conf"; then modules="$modules ${pair#*:}.ko"; fi
    done
    case $modules in
    *md-mod.ko*) ;;
    *)
        echo "rebuild: md is built into the kernel $version, and is no module" >&2
        exit 1
        ;;
    esac
    # Debug information and its digest change with each comment, and nothing of what runs.
    # shellcheck disable=SC2086 # a list of words
    chroot "$root" make -C "$headers" M=/build/drivers/md KCFLAGS=-g0 -j "$(nproc)" $modules
    for module in $modules; do
        chroot "$root" strip --strip-debug --remove-section=.note.gnu.build-id \
            "/build/drivers/md/$module"
        cp "$root/build/drivers/md/$module" "$out/"
    done
    ;;
mdadm)
    chroot "$root" make -C /build -j "$(nproc)" mdadm mdmon
    for program in mdadm mdmon; do
        chroot "$root" strip --strip-all --remove-section=.note.gnu.build-id \
            "/build/$program"
        cp "$root/build/$program" "$out/"
    done
    ;;
esac
