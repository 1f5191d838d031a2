"""Processes on the host: timeouts, process groups, error messages."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from lab.core.errors import HostError, ToolError
from lab.host.system import process
from lab.host.system.process import Child, ProcessResult, failure, run


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] != "Z"


def gone(pid: int, seconds: float = 3) -> bool:
    until = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not alive(pid)


def test_what_a_program_says_is_returned() -> None:
    done = run(["sh", "-c", 'cat; echo "$X" >&2'], stdin="in", env={"X": "err"})
    assert (done.status, done.stdout, done.stderr) == (0, "in", "err\n")


def test_arguments_are_not_read_by_a_shell() -> None:
    assert run(["printf", "%s", "$(id); `id` 'x'"]).stdout == "$(id); `id` 'x'"


def test_a_program_that_fails_is_the_tools_error_with_its_last_words() -> None:
    with pytest.raises(ToolError) as error:
        run(["sh", "-c", "echo first >&2; echo last >&2; exit 3"])
    assert str(error.value).startswith("'sh' ended with status 3: first\nlast")
    assert "the command was: sh -c 'echo first" in error.value.hint
    assert run(["false"], check=False).status == 1


def test_a_program_ended_by_a_signal_says_which() -> None:
    with pytest.raises(ToolError, match=r"'sh' was ended by signal SIGKILL: it printed nothing"):
        run(["sh", "-c", "kill -9 $$"])


def test_a_program_that_is_missing_is_the_hosts_error(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="the program 'no-such-program' is not installed"):
        run(["no-such-program"])
    with pytest.raises(HostError, match="could not be started: Permission denied"):
        run([tmp_path])
    with pytest.raises(HostError, match=r"the directory '.*absent' does not exist"):
        run(["true"], cwd=tmp_path / "absent")


def test_a_full_disk_is_the_hosts_error_and_not_the_tools() -> None:
    said = f"cp: {os.strerror(errno.ENOSPC)}"
    full = failure(ProcessResult(argv=("cp",), status=1, stdout="", stderr=said))
    assert isinstance(full, HostError)
    other = failure(ProcessResult(argv=("cp",), status=1, stdout="", stderr="cp: no"))
    assert isinstance(other, ToolError)


def test_what_takes_too_long_ends_with_all_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    script = f"echo $$ > {note}; sleep 60 & echo $! >> {note}; wait"
    began = time.monotonic()
    with pytest.raises(ToolError, match="did not end within 0 seconds and was stopped"):
        run(["sh", "-c", script], timeout=0.3)
    assert time.monotonic() - began < 5
    pids = [int(p) for p in note.read_text().split()]
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


def test_an_interrupted_wait_leaves_nothing_running(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    main = threading.main_thread().ident
    timer = threading.Timer(0.3, signal.pthread_kill, [main, signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run(["sh", "-c", f"echo $$ > {note}; exec sleep 60"], timeout=30)
    timer.join()
    assert gone(int(note.read_text()))


def test_a_log_gets_all_and_the_error_its_tail(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(ToolError, match="the end"):
        run(["sh", "-c", "seq 3000; echo the end >&2; exit 1"], log=log)
    assert log.read_text().startswith("1\n2\n")
    assert log.read_text().endswith("the end\n")


ECHO = "import sys\nfor line in sys.stdin: print('heard', line.strip(), flush=True)\n"


def child(tmp_path: Path, code: str, first: str = "job") -> Child:
    return Child([sys.executable, "-c", code], first_line=first, log=tmp_path / "log", env={})


def test_a_child_is_heard_line_by_line_and_ends_when_its_lifeline_does(tmp_path: Path) -> None:
    one = child(tmp_path, ECHO)
    assert next(one.lines()) == "heard job"
    assert alive(one.pid)
    one.hang_up()
    assert one.end(10) == 0
    one.hang_up()


def test_a_child_that_will_not_end_is_killed(tmp_path: Path) -> None:
    one = child(tmp_path, "import time\nprint('up', flush=True)\ntime.sleep(60)")
    assert next(one.lines()) == "up"
    one.hang_up()
    began = time.monotonic()
    assert one.end(0.2) == -9
    assert time.monotonic() - began < 5


def test_a_child_that_dies_at_once_is_no_broken_pipe(tmp_path: Path) -> None:
    one = child(tmp_path, "import sys; sys.exit('no')", first="x" * 1_000_000)
    assert list(one.lines()) == []
    one.hang_up()
    assert one.end(10) == 1
    assert (tmp_path / "log").read_text() == "no\n"


def test_becoming_a_missing_program_is_a_sentence() -> None:
    with pytest.raises(HostError, match="the program 'no-such-program' is not installed"):
        process.replace_with(["no-such-program"])


def test_an_attached_program_says_how_it_ended() -> None:
    assert process.attached(["sh", "-c", "exit 3"]) == 3
    assert process.attached(["sh", "-c", "kill -9 $$"]) == 128 + signal.SIGKILL
    with pytest.raises(HostError, match="the program 'no-such-program' is not installed"):
        process.attached(["no-such-program"])


def test_a_watcher_that_ends_as_it_begins_is_told() -> None:
    with pytest.raises(HostError, match="ended at once with status 4"):
        process.start_watcher(["sh", "-c", "exit 4"])
