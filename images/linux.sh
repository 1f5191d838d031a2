#!/bin/sh
# Builds Linux from a checked-out source with the lab's own configuration, and the driver of virtual time
# for it, in a root file system that buildtree.sh has kept.
#   linux.sh ROOT SOURCE OUT DRIVER CONFIG
# It needs a mount namespace of its own: SOURCE is always /linux in there, and DRIVER's files are in /build.
# Builder and date are the same each time, so equal sources give equal files. OUT gets bzImage,
# lab_disk.ko, lab_hunt.ko, init and engines.so.
set -eu
umask 022
root=$1
source=$2
out=$3
driver=$4
config=$5
mkdir -p "$root/linux" "$root/ccache"
mount --bind "$source" "$root/linux"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/build"
cp "$config" "$root/build/config"
export CCACHE_DIR=/ccache CCACHE_MAXSIZE=2G CCACHE_BASEDIR=/linux
export KBUILD_BUILD_TIMESTAMP='1970-01-01' KBUILD_BUILD_USER=lab KBUILD_BUILD_HOST=lab
export KBUILD_BUILD_VERSION=1 LOCALVERSION=-lab

chroot "$root" make -C /linux KCONFIG_ALLCONFIG=/build/config allnoconfig
for option in 64BIT MODULES BLK_DEV_INITRD VIRTIO_BLK VIRTIO_NET EXT4_FS BLK_DEV_MD MD_RAID1 \
    MD_RAID10 MD_RAID456; do
    grep -qx "CONFIG_$option=y" "$source/.config" || {
        echo "linux: this version cannot be configured with CONFIG_$option" >&2
        exit 1
    }
done
chroot "$root" make -C /linux -j "$(nproc)" CC='ccache gcc' bzImage modules
cp "$source/arch/x86/boot/bzImage" "$out/"

cp "$driver"/* "$root/build/"
chroot "$root" sh /build/driver.sh /linux
for file in lab_disk.ko lab_hunt.ko init engines.so; do
    cp "$root/build/$file" "$out/"
done
