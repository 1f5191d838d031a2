"""Where the lab keeps things, after the XDG base directory specification.

========  ==============================  ============================================
what      where                           may be removed by hand
========  ==============================  ============================================
images    ``$XDG_DATA_HOME/lab/images``   yes: built again, or imported again
runs      ``$XDG_DATA_HOME/lab/runs``     yes: the results are gone then
nights    ``$XDG_DATA_HOME/lab/nights``   yes: which runs belong to which matrix is gone then
schema    ``$XDG_DATA_HOME/lab/schema``   yes: ``lab schema scenario --install`` writes it again
site      ``$XDG_DATA_HOME/lab/site``     yes: ``lab report --all`` makes it again
profiles  ``$XDG_DATA_HOME/lab/profiles`` yes: ``lab disk calibrate`` makes them again
keys      ``$XDG_DATA_HOME/lab/keys``     yes: made again; live guests become unreachable
tls       ``$XDG_DATA_HOME/lab/tls``      yes: made again; the other machines need a new copy
guests    ``$XDG_STATE_HOME/lab/guests``  no: ``lab down`` and ``lab gc`` remove them
outposts  ``$XDG_STATE_HOME/lab/outposts`` no: ``lab gc`` removes what nobody works on
clusters  ``$XDG_STATE_HOME/lab/c``       no: ``lab cluster down`` and ``lab gc`` do
warm      ``$XDG_CACHE_HOME/lab/warm``    yes: the next guest of that kind boots cold
host      ``$XDG_CACHE_HOME/lab/host``    yes: what was found out about this host
plugins   ``$XDG_CACHE_HOME/lab/plugins`` yes: compiled again; not while guests run
kernels   ``$XDG_CACHE_HOME/lab/kernels`` yes: copied again; not while guests run
sealed    ``$XDG_CACHE_HOME/lab/sealed``  yes: made again; not while guests run
========  ==============================  ============================================

``LAB_HOME`` puts all of it below one directory instead, which tests and CI use.
"""

from __future__ import annotations

import os
from pathlib import Path


def _base(variable: str, default: str, sub: str) -> Path:
    home = os.environ.get("LAB_HOME")
    if home:
        return Path(home).absolute() / sub
    xdg = os.environ.get(variable, "")
    # The specification has relative paths ignored.
    return (Path(xdg) if xdg.startswith("/") else Path.home() / default) / "lab"


def images() -> Path:
    """Guest images, built and imported."""
    return _base("XDG_DATA_HOME", ".local/share", "data") / "images"


def runs() -> Path:
    """Run directories."""
    return _base("XDG_DATA_HOME", ".local/share", "data") / "runs"


def nights() -> Path:
    """Which runs a matrix made, one directory for each time that it was run."""
    return _base("XDG_DATA_HOME", ".local/share", "data") / "nights"


def site() -> Path:
    """The pages of all runs."""
    return _base("XDG_DATA_HOME", ".local/share", "data") / "site"


def profiles() -> Path:
    """Real disks as they were measured."""
    return _base("XDG_DATA_HOME", ".local/share", "data") / "profiles"


def schema() -> Path:
    """The JSON Schema that new scenarios name for editors."""
    return _base("XDG_DATA_HOME", ".local/share", "data") / "schema"


def keys() -> Path:
    """The lab's own SSH key pair."""
    return _base("XDG_DATA_HOME", ".local/share", "data") / "keys"


def tls() -> Path:
    """The certificates of a cluster of several machines."""
    return _base("XDG_DATA_HOME", ".local/share", "data") / "tls"


def guests() -> Path:
    """One directory for each live guest."""
    return _base("XDG_STATE_HOME", ".local/state", "state") / "guests"


def warm() -> Path:
    """Saved guests, ready to be restored."""
    return _base("XDG_CACHE_HOME", ".cache", "cache") / "warm"


def host() -> Path:
    """Facts about this host that cost time to find out."""
    return _base("XDG_CACHE_HOME", ".cache", "cache") / "host"


def outposts() -> Path:
    """What outposts of clusters are working on, a directory each."""
    return _base("XDG_STATE_HOME", ".local/state", "state") / "outposts"


def clusters() -> Path:
    """Clusters on this machine alone. Its hosts' homes are in it: sockets want short paths."""
    return _base("XDG_STATE_HOME", ".local/state", "state") / "c"


def plugins() -> Path:
    """Compiled plug-ins of the servers behind modelled disks."""
    return _base("XDG_CACHE_HOME", ".cache", "cache") / "plugins"


def sealed() -> Path:
    """What guests with virtual time boot: images as raw files, drivers, initramfs."""
    return _base("XDG_CACHE_HOME", ".cache", "cache") / "sealed"


def kernels() -> Path:
    """Kernels of the user's own, as they were when a guest was to boot them."""
    return _base("XDG_CACHE_HOME", ".cache", "cache") / "kernels"
