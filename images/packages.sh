#!/bin/sh
# Reads the package lists that mmdebstrap has just fetched, and fetches packages; its customize hook.
# The root file system is empty: only apt's lists are used, and thrown away afterwards.
#   packages.sh ROOT WORK RELEASE
# WORK/wanted lists packages to fetch into WORK/debs, as NAME=VERSION; without this file WORK gets
# in found/ the lists of kernels and of mdadm, and changelogs.
set -eu
umask 022
root=$1
work=$2
release=$3
# mmdebstrap's own configuration: the host's sources and settings are not used.
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"

# Backports are not there for every release, or not any more.
more=$root/etc/apt/sources.list.d/backports.list
sed -n "s|^\(deb .*\) $release \(.*\)\$|\1 $release-backports \2|p" "$root/etc/apt/sources.list" >"$more"
apt-get update --error-on=any || {
    rm "$more"
    apt-get update --error-on=any
}

if [ -e "$work/wanted" ]; then
    mkdir -p "$work/debs"
    cd "$work/debs"
    # shellcheck disable=SC2046 # a list of words
    apt-get download $(cat "$work/wanted")
    exit 0
fi

names=$(apt-cache pkgnames linux- |
    grep -E '^linux-(image|headers|modules|base|binary|kbuild|compiler)' |
    grep -v -E -- '-dbg$|-unsigned$|-rt-')
# shellcheck disable=SC2086 # a list of words
apt-cache show --all-versions $names mdadm >"$work/found/show"
# shellcheck disable=SC2086 # a list of words
apt-cache madison $names mdadm >"$work/found/madison"

# The changelog of the newest of each branch, from a small package: it has the dates of all before.
awk -v RS= '
    {
        name = version = ""
        for (i = 1; i < NF; i++) {
            if ($i == "Package:" && name == "") name = $(i + 1)
            if ($i == "Version:" && version == "") version = $(i + 1)
        }
        split(version, part, ".")
        if (name ~ /^linux-(base|kbuild)-[0-9]/) print part[1] "." part[2], version, name
        if (name == "mdadm") print name, version, name
    }' "$work/found/show" | sort -V |
    awk '{ last[$1] = $3 "=" $2 } END { for (branch in last) print last[branch] }' >"$work/newest"
mkdir "$work/changelogs"
cd "$work/changelogs"
while read -r package; do
    apt-get download "$package" || echo "no dates from $package" >&2
done <"$work/newest"
for deb in *.deb; do
    [ -e "$deb" ] || continue
    axis=kernel
    case $deb in mdadm_*) axis=mdadm ;; esac
    sh "${0%/*}/changelog.sh" "$deb" >"$work/found/changelog.$axis.$deb"
done
