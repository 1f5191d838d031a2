"""Runs one command and prints the seconds it took: ``{"argv": […]}`` to ``{"seconds": …}``.

A shell would start a process to read the clock, which costs an emulated guest 20 milliseconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time


def main(argv: list[str]) -> str | int:
    """Run it with nothing to read; what it prints on standard output is passed over."""
    began = time.monotonic()
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
    seconds = time.monotonic() - began
    if done.returncode != 0:
        return f"{argv[0]} ended with status {done.returncode}"
    print(json.dumps({"seconds": round(seconds, 6)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])["argv"]))
