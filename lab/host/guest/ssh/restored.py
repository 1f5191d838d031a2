"""First command in a restored guest: sets the time of day and reseeds the kernel's random
numbers."""

from __future__ import annotations

import time
from secrets import token_hex

from lab.compile.guest.steps import ANSWER, ASK, WAITER_ID


def script() -> str:
    """Return the shell lines; they may run at any time.

    Bytes written to the kernel's pool have no effect until it takes a new key, once a minute
    (``drivers/char/random.c: crng_reseed``). Until then all guests of one snapshot draw the same
    numbers, and mdadm gives their arrays the same UUID. ``RNDRESEEDCRNG`` (``0x5207``, random(4))
    makes it take a key at once. A driver for a generation id would too
    (``drivers/virt/vmgenid.c``), but Debian's cloud kernels have none.

    If the guest was saved with :data:`lab.compile.guest.steps.WAITER` running, that process does
    it, because starting the three programs takes an emulated CPU 0.15 seconds. The script is Perl,
    which starts in a tenth of Python's time.
    """
    seconds, micro = divmod(time.time_ns() // 1000, 1_000_000)
    seed = token_hex(64)
    return f"""\
waiter() {{
  read -r pid < {WAITER_ID} && kill -0 "$pid" && echo {seconds} {micro} {seed} > {ASK} &&
    read -r answer < {ANSWER} && [ "$answer" = done ]
}} 2>/dev/null
waiter || {{
  date -s @{seconds}.{micro:06} >/dev/null
  echo {seed} > /dev/urandom
  perl -e 'open(R, ">", "/dev/urandom") && ioctl(R, 0x5207, 0) or exit 1' 2>/dev/null ||
    python3 -c 'import fcntl; fcntl.ioctl(open("/dev/urandom", "wb"), 0x5207)'
}}"""
