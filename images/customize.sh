#!/bin/sh
# Makes a guest image of a root file system that mmdebstrap has just filled; its customize hook.
#   customize.sh ROOT WORK
# WORK holds what the recipe asks for (files/, enabled, masked, script; kernel.deb and modules/, where
# there are any) and gets, in found/ and image/, what the lab reads back: kernel, its configuration,
# initrd, their contents, every package's version.
set -eu
umask 022
root=$1
work=$2

if [ -e "$work/kernel.deb" ]; then
    cp "$work/kernel.deb" "$root/tmp/"
    chroot "$root" dpkg --install /tmp/kernel.deb
    rm -f "$root/tmp/kernel.deb"
fi

cp -R "$work/files/." "$root/"
while read -r unit; do
    chroot "$root" systemctl --quiet enable "$unit"
done <"$work/enabled"
while read -r unit; do
    ln -sfn /dev/null "$root/etc/systemd/system/$unit"
done <"$work/masked"

if [ -s "$work/script" ]; then
    cp "$work/script" "$root/tmp/script"
    chroot "$root" sh -eu /tmp/script
    rm -f "$root/tmp/script"
fi

# Each guest gets its own: cloud-init hands over the host keys, systemd makes the machine-id.
rm -f "$root"/etc/ssh/ssh_host_* "$root/etc/resolv.conf"
: >"$root/etc/machine-id"

# The kernel's package was told not to make an initrd (INITRD=No): made once, with all files there.
set -- "$root"/boot/vmlinuz-*
if [ $# -ne 1 ] || [ ! -e "$1" ]; then
    echo "there must be one kernel in /boot, found: $*" >&2
    exit 1
fi
version=${1##*/vmlinuz-}
rm -f "$root"/boot/initrd.img-*

: >"$work/found/own_modules"
for built in "$work"/modules/*; do
    [ -e "$built" ] || continue
    if [ "${built##*/}" != "$version" ]; then
        echo "the modules are for ${built##*/}, and the image's kernel is $version" >&2
        exit 1
    fi
    mkdir -p "$root/usr/lib/modules/$version/updates"
    for module in "$built"/*.ko*; do
        cp "$module" "$root/usr/lib/modules/$version/updates/"
        name=${module##*/}
        echo "${name%%.ko*}" >>"$work/found/own_modules"
    done
done
chroot "$root" depmod "$version"
# Which file each of them would be loaded from: the one built here, and not the kernel's own.
while read -r name; do
    chroot "$root" modinfo -k "$version" -n "$name"
done <"$work/found/own_modules" >"$work/found/module_files"
chroot "$root" update-initramfs -c -k "$version"
mv "$root/boot/vmlinuz-$version" "$work/image/kernel"
mv "$root/boot/initrd.img-$version" "$work/image/initrd"

echo "$version" >"$work/found/kernel"
cp "$root/boot/config-$version" "$work/found/config"
mkdir "$root/tmp/initrd"
cp "$work/image/initrd" "$root/tmp/initrd/"
chroot "$root" lsinitramfs /tmp/initrd/initrd >"$work/found/initrd"
rm -r "$root/tmp/initrd"
# shellcheck disable=SC2016 # dpkg-query's own fields
chroot "$root" dpkg-query -W -f '${Package}\t${Version}\n' >"$work/found/packages"

# Nothing that apt can fetch again, and no log of the building.
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb
rm -rf "$root"/var/log/*.log "$root"/var/log/apt/* "$root"/var/cache/debconf/*-old
