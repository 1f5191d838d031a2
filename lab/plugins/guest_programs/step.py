"""Runs a command or a script of a scenario, and says how it ended.

Its output goes through unchanged. The last line of standard output is ``--lab-- `` and a JSON
object: exit status and seconds. The exit status is 0 if the command's is one of ``accepted``, or if
that is empty.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

ENDED_BY_LIMIT = 124
"""Exit status after the time limit, as of ``timeout(1)``."""


def run(argv: list[str], directory: str, limit: float | None) -> tuple[int, float]:
    """Return exit status and seconds; the limit ends the command and all that it started."""
    began = time.monotonic()
    child = subprocess.Popen(argv, cwd=directory, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        status = child.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        print(f"it did not end within {limit:g} seconds, and was killed", file=sys.stderr)
        status = ENDED_BY_LIMIT
    # A negative number is a signal: a shell adds 128 to it.
    return (128 - status if status < 0 else status), time.monotonic() - began


def main(p: dict[str, Any]) -> int:
    """Make the working directory and the script's file, and run it."""
    own = tempfile.mkdtemp(prefix="lab-step-", dir=p["scratch"])
    try:
        directory = p["directory"] or own
        os.makedirs(directory, exist_ok=True)
        os.environ.update(p["environment"])
        argv = list(p["argv"])
        if p["script"]:
            path = os.path.join(own, "script")
            with open(path, "w", encoding="utf-8") as file:
                file.write(p["script"])
            os.chmod(path, 0o700)
            # Without #! it is for the shell, and ends with the first command that fails.
            argv = [*([] if p["script"].startswith("#!") else ["/bin/sh", "-e"]), path, *argv]
        try:
            status, seconds = run(argv, directory, p["limit"])
        except OSError as error:
            print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
            status, seconds = 127, 0.0
    finally:
        shutil.rmtree(own, ignore_errors=True)
    told = json.dumps({"status": status, "seconds": round(seconds, 6)})
    print(f"\n--lab-- {told}", flush=True)
    return 0 if not p["accepted"] or status in p["accepted"] else status


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
