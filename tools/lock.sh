#!/bin/sh
# Pin every dependency, with hashes, for all platforms and every Python the project supports.
#
# The lock files name no package index: whoever installs from them may use any mirror, the hashes decide.
# uv itself is installed by its own lock file into a temporary environment (or taken from UV=/path/to/uv).
set -eu
cd "$(dirname "$0")/.."

python=${PYTHON:-/usr/bin/python3}
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
trap 'exit 130' INT TERM

uv=${UV:-}
if [ -z "$uv" ]; then
    "$python" -m venv "$temporary/venv"
    "$temporary/venv/bin/python" -m pip install --quiet --require-hashes -r requirements/lock.txt
    uv=$temporary/venv/bin/uv
fi

# compile SOURCE NAME [UV-OPTION...]: resolve SOURCE into requirements/NAME.txt.
# The present lock is the starting point: versions move only with UPGRADE=1 or where a source asks for it.
compile() {
    from=$1
    name=$2
    shift 2
    if [ -z "${UPGRADE:-}" ] && [ -f "requirements/$name.txt" ]; then
        cp "requirements/$name.txt" "$temporary/$name.txt"
    fi
    "$uv" pip compile --quiet --no-config --no-python-downloads --python "$python" \
        --universal --python-version 3.11 --generate-hashes \
        --no-annotate --no-header "$@" --output-file "$temporary/$name.txt" "$from" >/dev/null
    {
        echo "# Written by \`make lock\` from $from: change that file, not this one."
        sed '/^#/d' "$temporary/$name.txt"
    } >"$temporary/$name.new"
    mv "$temporary/$name.new" "requirements/$name.txt"
    echo "requirements/$name.txt: $(grep -c '==' "requirements/$name.txt") packages"
}

compile requirements/lock.in lock
compile requirements/build.in build
compile pyproject.toml runtime --extra guests
compile pyproject.toml cluster --extra guests --extra cluster --constraint requirements/runtime.txt
compile requirements/dev.in dev --constraint requirements/build.txt --constraint requirements/runtime.txt
compile requirements/docs.in docs
