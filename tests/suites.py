"""Smallest possible suites with the interfaces of mdadm's suite and of blktests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_MDADM = """\
#!/bin/bash
for word in "$@"; do
  case $word in
  --tests=*) names=${word#*=} ;;
  --logdir=*) logs=${word#*=} ;;
  --keep-going | --save-logs) ;;
  *) echo "$0: Unknown argument: $word"; exit 1 ;;
  esac
done
. tests/func.sh
mkdir -p "$logs"
log=log
! mountpoint -q /var/tmp || log=/var/tmp/log  # as mdadm's, where the lab has mounted a disk there
failed=0
for name in ${names//,/ }; do
  echo -n "$PWD/tests/$name... "
  (set -ex; . "tests/$name") > $log 2>&1
  case $? in
  0) echo succeeded ;;
  3) echo -e "\\033[1;33mskipping\\033[0m - see $logs/$name.log and $logs/$name.log for details" ;;
  *) failed=1
    echo "## saved of $name" > "$logs/fail$name.log"
    echo -e "\\033[0;31mFAILED\\033[0m - see $logs/$name.log and $logs/fail$name.log for details" ;;
  esac
  mv $log "$logs/$name.log"
done
exit $failed
"""

_BLKTESTS = """\
#!/bin/bash
. common/rc
TEST_DEVS=()
[ "$1" != -c ] || { . ./"$2"; shift 2; }
failed=0
for name in "$@"; do
  unset SKIP
  . "tests/$name"
  line() { printf '%-60s' "$name ($DESCRIPTION)"; }
  line; echo
  mkdir -p "results/nodev/${name%/*}"
  log=results/nodev/$name
  if requires; test -n "$SKIP"; then
    line; echo " [not run]"; echo "    $SKIP"
  elif ! test_it > $log.out.bad 2>&1; then
    line; echo " [failed]"; echo "    runtime    ...  0.010s"; failed=1
    echo "    exited with status 1"
  elif diff "tests/$name.out" $log.out.bad > /dev/null; then
    line; echo " [passed]"; echo "    runtime    ...  0.010s"; rm $log.out.bad
  else
    line; echo " [failed]"; echo "    runtime    ...  0.010s"; failed=1
    diff -u "tests/$name.out" $log.out.bad | sed 's/^/    /'
  fi
done
exit $failed
"""


def mdadm_suite(directory: Path, tests: Mapping[str, str], setup: str = "") -> Path:
    """Write an mdadm suite with these tests; ``setup`` runs before the first one."""
    (directory / "tests").mkdir(parents=True)
    (directory / "test").write_text(_MDADM)
    (directory / "tests" / "func.sh").write_text(f"{setup}\n")
    for name, script in tests.items():
        (directory / "tests" / name).write_text(f"{script}\n")
    return directory


def blktests_suite(directory: Path, tests: Mapping[str, str]) -> Path:
    """Write blktests with these tests in group md: shell lines that should print ``good``."""
    (directory / "tests" / "md").mkdir(parents=True)
    (directory / "common").mkdir()
    (directory / "common" / "rc").write_text(":\n")
    (directory / "check").write_text(_BLKTESTS)
    for name, script in tests.items():
        text = f"DESCRIPTION='number {name}'\nrequires() {{ :; }}\ntest_it() {{ :; }}\n{script}\n"
        (directory / "tests" / "md" / name).write_text(text)
        (directory / "tests" / "md" / f"{name}.out").write_text("good\n")
    return directory
