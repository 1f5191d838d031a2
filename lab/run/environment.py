"""Facts about this host, for the result document."""

from __future__ import annotations

import os
import platform
from typing import Any, Final

from lab import __version__
from lab.host.system import accelerator, process
from lab.host.system.accelerator import Accelerator
from lab.model.image.manifest import Image


def image_facts(image: Image) -> dict[str, Any]:
    """Return facts about the image that guests boot."""
    expired = [
        f"{one.suite}, valid until {one.valid_until:%Y-%m-%d}"
        for one in image.manifest.expired
        if one.valid_until
    ]
    return {
        "name": image.name,
        "digest": image.digest,
        "kernel": image.manifest.kernel_version,
        "mdadm": image.manifest.mdadm_version,
        **({"expired": expired} if expired else {}),
    }


def host_facts(found: Accelerator) -> dict[str, Any]:
    """Return versions, accelerator and hardware."""
    return {
        "lab": __version__,
        "accelerator": found.kind,
        "accelerator_reason": found.reason,
        "qemu": accelerator.qemu_version(),
        "libvirt": libvirt_version(),
        "host": {
            "name": platform.node(),
            "kernel": platform.release(),
            "machine": platform.machine(),
            "cpu": accelerator.cpu_model(),
            "cpus": len(os.sched_getaffinity(0)),
            "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "python": platform.python_version(),
        },
    }


_SOURCES: Final = {
    "branch": ("LAB_BRANCH", "GITHUB_HEAD_REF", "GITHUB_REF_NAME", "CI_COMMIT_REF_NAME"),
    "commit": ("LAB_COMMIT", "GITHUB_SHA", "CI_COMMIT_SHA"),
}
"""Environment variables that name the tested source, the first that is set: the lab's own, then
those of GitHub Actions (of a pull request its branch) and GitLab CI."""


def source_facts() -> dict[str, str]:
    """Return the branch and the commit of what is tested, as far as the environment names them."""
    found = {
        fact: next((os.environ[name] for name in names if os.environ.get(name)), "")
        for fact, names in _SOURCES.items()
    }
    return {fact: value for fact, value in found.items() if value}


def libvirt_version() -> str:
    """Return libvirt's version, as reported by virsh."""
    done = process.run(["virsh", "--version"], timeout=20, check=False)
    return done.stdout.strip() or "unknown"
