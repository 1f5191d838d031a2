#!/bin/sh
# What `make check` runs: the linters, concurrently with the tests that need no guest. Fails if any of them fails.
#   check.sh [PYTEST-OPTION...]   as in `tools/check.sh -n 0 -k dd`
set -eu
cd "$(dirname "$0")/.."

# All linters run, so that the first failure does not hide the others.
lint() {
    wrong=0
    for linter in "ruff format --check" "ruff check" mypy "lint-imports --no-logo"; do
        echo ".venv/bin/$linter"
        # shellcheck disable=SC2086 # a program and its options
        .venv/bin/$linter || wrong=1
    done
    echo tools/words.py
    .venv/bin/python tools/words.py || wrong=1
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
.venv/bin/python -m pytest -q -n 2 -o testpaths=tests/unit -m "not guest and not slow" "$@" || tests=1
lints=0
wait "$linters" || lints=1
trap - INT TERM
cat "$said"
case $tests$lints in
00) exit 0 ;;
0*) failed="a linter" ;;
*0) failed="the tests" ;;
*) failed="the tests and a linter" ;;
esac
echo "check: failed: $failed" >&2
exit 1
