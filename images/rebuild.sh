#!/bin/sh
# Builds md's modules or mdadm from the source in /build; the lab runs it in a sandbox whose programs are
# those of a build tree. The source is always in /build, so that equal sources give equal files.
#   rebuild.sh TARGET VERSION
# What was built is left in /out.
set -eu
umask 022
target=$1
version=$2

case $target in
md)
    headers=/usr/src/linux-headers-$version
    conf=$(readlink -e "$headers/include/config/auto.conf")
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
    make -C "$headers" M=/build/drivers/md KCFLAGS=-g0 -j "$(nproc)" $modules
    for module in $modules; do
        strip --strip-debug --remove-section=.note.gnu.build-id "/build/drivers/md/$module"
        cp --no-dereference "/build/drivers/md/$module" /out/
    done
    ;;
mdadm)
    make -C /build -j "$(nproc)" mdadm mdmon
    for program in mdadm mdmon; do
        strip --strip-all --remove-section=.note.gnu.build-id "/build/$program"
        cp --no-dereference "/build/$program" /out/
    done
    ;;
esac
