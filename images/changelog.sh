#!/bin/sh
# Prints the Debian changelog in a package; nothing if it has none.
#   changelog.sh FILE.deb
set -eu
for name in changelog.Debian.gz changelog.gz; do
    text=$(dpkg-deb --fsys-tarfile "$1" |
        tar -xO --wildcards "./usr/share/doc/*/$name" 2>/dev/null | gunzip) || continue
    [ -z "$text" ] || break
done
printf '%s\n' "$text"
