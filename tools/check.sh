#!/bin/sh
# What `make check` runs: the linters beside the tests that need no guest, each to its end. Fails when any of them does.
#   check.sh [PYTEST-OPTION...]   as in `tools/check.sh -n 0 -k dd`
set -eu
cd "$(dirname "$0")/.."

# Each linter with what it says, so that the first that fails does not hide the others.
lint() {
    wrong=0
    for linter in "ruff format --check" "ruff check" mypy "lint-imports --no-logo"; do
        echo ".venv/bin/$linter"
        # shellcheck disable=SC2086 # a program and its options
        .venv/bin/$linter || wrong=1
    done
    return $wrong
}

# Where it is set, each run would compile the tests anew, which takes each of the two processes a second.
unset PYTHONDONTWRITEBYTECODE

said=$(mktemp)
trap 'rm -f "$said"' EXIT
lint >"$said" 2>&1 &
linters=$!
trap 'kill "$linters" || true; exit 130' INT
trap 'kill "$linters" || true; exit 143' TERM

tests=0
.venv/bin/python -m pytest -q -n 2 --dist worksteal -m "not guest and not slow and not packaging" "$@" || tests=$?
lints=0
wait "$linters" || lints=$?
trap - INT TERM
cat "$said"
if [ "$tests$lints" != 00 ]; then
    echo "check: failed:$([ $tests = 0 ] || echo " the tests")$([ $lints = 0 ] || echo " a linter")" >&2
    exit 1
fi
