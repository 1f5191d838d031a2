#!/bin/sh
# Builds lab_disk.ko, its variant lab_hunt.ko, init and engines.so from their sources in /build, for the
# kernel of these headers. It runs in the root file system that has compiler and headers.
#   driver.sh HEADERS
set -eu
gcc -O2 -Wall -Werror -static -o /build/init /build/init.c
grep -o '^VERSIONED([^,]*' /build/engines.c | sort -u | sed 's/.*(//; s/$/ {};/' >/build/versions
gcc -O2 -Wall -Werror -fPIC -shared -Wl,--version-script=/build/versions -o /build/engines.so \
    /build/engines.c
# lab_hunt.ko is a module with the name lab_disk, so it is built in a directory of its own.
mkdir /build/hunt
mv /build/lab_hunt.c /build/disturb.h /build/hunt
printf "%s\n" "obj-m := lab_disk.o" "lab_disk-y := lab_hunt.o" "ccflags-y += -I/build" \
    >/build/hunt/Kbuild
grep ^ccflags-y /build/Kbuild >>/build/hunt/Kbuild
make -C "$1" M=/build/hunt modules
mv /build/hunt/lab_disk.ko /build/lab_hunt.ko
rm -r /build/hunt
exec make -C "$1" M=/build modules
