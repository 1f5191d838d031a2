#!/bin/sh
# Builds Linux from the source in /linux with the lab's own configuration, and the driver of virtual time
# for it; the lab runs it in a sandbox whose programs are those of a build tree.
#   linux.sh
# /changed, if it is there, has what the commit changes in the source below: files/ is new, removed lists
# what is not there any more. /driver has the driver's sources, /config the configuration.
# Builder and date are the same each time, so equal sources give equal files. /out gets bzImage,
# lab_disk.ko, lab_hunt.ko, init and engines.so.
set -eu
umask 022
export KBUILD_BUILD_TIMESTAMP='1970-01-01' KBUILD_BUILD_USER=lab KBUILD_BUILD_HOST=lab
export KBUILD_BUILD_VERSION=1 LOCALVERSION=-lab

if [ -d /changed ]; then
    (cd /linux && xargs -0 rm -f -- </changed/removed)
    # New times, so that make builds what they are for. A file may have become a link or a directory.
    cp -RP --no-preserve=timestamps --remove-destination /changed/files/. /linux/
fi
make -C /linux KCONFIG_ALLCONFIG=/config allnoconfig
for option in 64BIT MODULES BLK_DEV_INITRD VIRTIO_BLK VIRTIO_NET EXT4_FS BLK_DEV_MD MD_RAID1 \
    MD_RAID10 MD_RAID456; do
    grep -qx "CONFIG_$option=y" /linux/.config || {
        echo "linux: this version cannot be configured with CONFIG_$option" >&2
        exit 1
    }
done
make -C /linux -j "$(nproc)" bzImage modules
cp --no-dereference /linux/arch/x86/boot/bzImage /out/

cp /driver/* /build/
sh /build/driver.sh /linux
for file in lab_disk.ko lab_hunt.ko init engines.so; do
    cp --no-dereference "/build/$file" /out/
done
