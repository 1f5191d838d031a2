#!/bin/sh
# Builds kernel modules in a root file system with headers and sources that mmdebstrap has just
# filled and that is thrown away afterwards; its customize hook.
#   modules.sh ROOT WORK
# WORK says what to build (source, options, build, patches/) and gets modules/VERSION/*.ko.
set -eu
umask 022
root=$1
work=$2
source=$(cat "$work/source")

fail() {
    echo "modules: $*" >&2
    exit 1
}

set -- "$root"/usr/lib/modules/*/build
[ $# -eq 1 ] && [ -e "$1" ] || [ -L "$1" ] || fail "there must be one kernel's headers, found: $*"
version=${1%/build}
version=${version##*/}
headers=/usr/src/linux-headers-$version
made=$work/modules/$version
mkdir -p "$made"

case $source in
*-dkms)
    # The package may have built them already, for this kernel or not at all.
    chroot "$root" dkms autoinstall -k "$version" || {
        cat "$root"/var/lib/dkms/*/*/build/make.log >&2 || true
        fail "DKMS could not build $source for $version"
    }
    cp "$root/usr/lib/modules/$version"/updates/dkms/*.ko* "$made/"
    exit 0
    ;;
esac

# linux-source is the newest of its kind: it names the one with the source, and that must be the
# kernel's own.
# shellcheck disable=SC2016 # dpkg-query's own field
of() { chroot "$root" dpkg-query -W -f '${Version}' "$1"; }
set -- "$root"/usr/src/linux-source-*.tar.xz
[ $# -eq 1 ] && [ -e "$1" ] || fail "$source holds no kernel's source"
package=${1##*/}
package=${package%.tar.xz}
found=$(of "$package")
wanted=$(of "linux-headers-$version")
[ "$found" = "$wanted" ] || fail "$package is $found and the kernel's headers are $wanted"

directories=$(sed 's|/[^/]*\.ko$||' "$work/build" | sort -u)
tree=$root/build
mkdir "$tree"
# shellcheck disable=SC2046 # a list of words
chroot "$root" tar -C /build --strip-components=1 -xf "/usr/src/$package.tar.xz" \
    $(for d in $directories; do echo "$package/$d"; done)
for file in "$work"/patches/*; do
    [ -e "$file" ] || continue
    chroot "$root" patch -d /build -p1 --batch --forward <"$file" ||
        fail "patch ${file##*/} does not apply to $(echo "$directories" | tr '\n' ' ')of $package"
done

# The options as the modules' makefiles and sources see them: these headers are nobody else's.
while IFS='=' read -r name value; do
    for file in include/config/auto.conf include/generated/autoconf.h; do
        found=$root$(chroot "$root" readlink -e "$headers/$file") || fail "the headers have no $file"
        sed -i -E "/^(#define )?${name}(_MODULE)?[ =]/d" "$found"
        case $file:$value in
        *:n) ;;
        *auto.conf:*) echo "$name=$value" >>"$found" ;;
        *:y) echo "#define $name 1" >>"$found" ;;
        *:m) echo "#define ${name}_MODULE 1" >>"$found" ;;
        *) echo "#define $name $value" >>"$found" ;;
        esac
    done
done <"$work/options"

for d in $directories; do
    single=$(sed -n "s|^$d/\([^/]*\.ko\)$|\1|p" "$work/build")
    # shellcheck disable=SC2086 # a list of words
    chroot "$root" make -C "$headers" "M=/build/$d" -j "$(nproc)" ${single:-modules}
    find "$tree/$d" -name '*.ko' -exec cp {} "$made/" ';'
    for module in $single; do
        [ -e "$made/$module" ] || fail "$d/$module was not made"
    done
done
