#!/bin/sh
# Builds Linux as a program of the host (User-Mode Linux) from the source in /linux, which has the lab's edits,
# with the driver of virtual time in it; the lab runs it in a sandbox whose programs are those of a build tree.
#   native.sh
# /driver has the driver's sources, init.c and engines.c, and kernel.config. Builder and date are the same each
# time, so equal sources give equal files. /out gets linux, init and engines.so.
set -eu
umask 022
export KBUILD_BUILD_TIMESTAMP='1970-01-01' KBUILD_BUILD_USER=lab KBUILD_BUILD_HOST=lab
export KBUILD_BUILD_VERSION=1 LOCALVERSION=-lab-native

for file in lab_disk.c lab_native.c lab_native.h lab_user.c throttle.h drive.h region.h map.h; do
    cp "/driver/$file" /linux/arch/um/drivers/
done
make -C /linux ARCH=um KCONFIG_ALLCONFIG=/driver/kernel.config allnoconfig
for option in 64BIT UML_TIME_TRAVEL_SUPPORT HIGH_RES_TIMERS MAGIC_SYSRQ BLK_DEV_INITRD EXT4_FS BLK_DEV_MD \
    MD_RAID1 MD_RAID10 MD_RAID456; do
    grep -qx "CONFIG_$option=y" /linux/.config || {
        echo "native: this version cannot be configured with CONFIG_$option" >&2
        exit 1
    }
done
make -C /linux ARCH=um -j "$(nproc)" linux
strip --strip-debug -o /out/linux /linux/linux

gcc -O2 -Wall -Werror -static -o /out/init /driver/init.c
grep -o '^VERSIONED([^,]*' /driver/engines.c | sort -u | sed 's/.*(//; s/$/ {};/' >/build/versions
gcc -O2 -Wall -Werror -fPIC -shared -Wl,--version-script=/build/versions -o /out/engines.so /driver/engines.c
