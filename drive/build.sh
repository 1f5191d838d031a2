#!/bin/sh
# Builds lab_disk.ko for a packaged Debian kernel, its variant lab_hunt.ko, init and engines.so, in a tree
# of its headers that is thrown away: the same packages make the same bytes on every host.
#   build.sh SUITE HEADERS DIRECTORY [HOOK]
# as in: build.sh trixie-backports linux-headers-cloud-amd64 /tmp/newest
# HOOK are shell lines that add another archive to those of mmdebstrap's tree "$1".
# DIRECTORY gets lab_disk.ko, lab_hunt.ko, init, engines.so, and the kernel's version in the file `version`.
set -eu
suite=$1
headers=$2
directory=$3
hook=${4:-true}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$directory"

# With updates and security, as mmdebstrap has them; backports are asked for beside their release.
release=${suite%-backports}
[ "$release" = "$suite" ] || headers=$headers/$suite
backports="sed -n 's/ $release main/ $suite main/p' \"\$1/etc/apt/sources.list\" \\
    >\"\$1/etc/apt/sources.list.d/$suite.list\""
[ "$release" != "$suite" ] || backports=true

# objtool wants /proc.
# shellcheck disable=SC2016 # for the shell that runs the hook
make='
    set -- "$1" "$1"/usr/src/linux-headers-*-amd64
    [ $# = 2 ] || { echo "build: there must be one kernel, found: $*" >&2; exit 1; }
    echo "${2##*/linux-headers-}" >"$1/build/version"
    unshare --mount sh -euc '\''
        mount -t proc proc "$1/proc"
        exec chroot "$1" sh /build/driver.sh "${2#"$1"}"
    '\'' - "$1" "$2"'

mmdebstrap --variant=apt --format=null --include="$headers,make,gcc,libc6-dev" \
    --setup-hook="$backports" --setup-hook="$hook" \
    --customize-hook='mkdir "$1/build"' \
    --customize-hook="copy-in $here/Kbuild $here/lab_disk.c $here/region.h $here/throttle.h $here/drive.h $here/map.h $here/disturb.h $here/lab_hunt.c $here/init.c $here/engines.c $here/driver.sh /build" \
    --customize-hook="$make" \
    --customize-hook="copy-out /build/lab_disk.ko /build/lab_hunt.ko /build/init /build/engines.so /build/version $directory" \
    "$release" /dev/null
