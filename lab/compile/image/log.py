"""The log of an image build: stages, reasons of failure, and the archive's age."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Final

from lab.core.errors import HostError, InputError, LabError, ToolError
from lab.model.image.manifest import ArchiveRelease

STAGES: Final = (
    # mmdebstrap's output, text for the user, and fraction of the build done
    ("I: running apt-get update", "reading the archive's package lists", 0.02),
    ("I: downloading packages", "fetching the essential packages", 0.07),
    ("I: extracting archives", "unpacking the essential packages", 0.12),
    ("I: installing essential packages", "installing the essential packages", 0.17),
    ("I: installing remaining packages", "fetching and installing the other packages", 0.27),
    ("I: running --customize-hook", "configuring the image and making its initrd", 0.78),
    ("I: cleaning package lists", "cleaning up", 0.88),
)
BOOTSTRAPPED: Final = 0.90
EXPECTED_SECONDS: Final = 60.0
"""Typical duration on two cores with a fast archive; not a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage of the build."""

    says: str
    begins: float
    """Fraction of the build that is done at its start, 0 to 1."""
    ends: float

    def after(self, seconds: float) -> float:
        """Return the fraction of the build that is done so many seconds after the stage began;
        below ``ends``."""
        share = min(seconds / (EXPECTED_SECONDS * (self.ends - self.begins)), 0.95)
        return self.begins + share * (self.ends - self.begins)


def stage_of(line: str) -> Stage | None:
    """Return the stage that starts with this line of the log; ``None``: none does."""
    ends = (*(begins for _, _, begins in STAGES[1:]), BOOTSTRAPPED)
    for (prefix, says, begins), end in zip(STAGES, ends, strict=True):
        if line.startswith(prefix):
            return Stage(says=says, begins=begins, ends=end)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFailure:
    """Why a build failed, from its log."""

    says: str
    hint: str
    error: type[LabError] = HostError
    """Class of the error, by who must act."""


def is_full(log: str) -> bool:
    """Return whether a build failed since the disk is full."""
    full = r"No space left on device|have enough free space|Disk quota exceeded"
    return re.search(full, log) is not None


def reason_of(log: str, *, suite: str, name: str) -> BuildFailure | None:
    """Return the reason of a failed build; ``None``: the log shows no known one.

    ``suite`` is the recipe's own, ``name`` the image's.
    """
    if is_full(log):
        return BuildFailure(
            says="the disk is full",
            hint="free some space, or move the lab elsewhere with LAB_HOME",
        )
    expired = dict(_EXPIRED.findall(log))
    if expired:
        suites = " and ".join(f"'{one}'" for one in expired)
        since = next(iter(expired.values()))
        files = "Release files" if len(expired) > 1 else "Release file"
        have = "have" if len(expired) > 1 else "has"
        return BuildFailure(
            says=f"the archive's {files} of {suites} {have} expired"
            + (f", {since} ago" if since else ""),
            hint="an old copy of the archive is taken with --accept-expired, or with"
            f" {ACCEPT_EXPIRED}=1 in the environment: "
            # the run that needs an image with another kernel (NAME+KERNEL) builds it
            + (f"lab image build {name} --accept-expired" if "+" not in name else "add it to this"),
        )
    if re.search(r"BADSIG|signatures? (?:were|was) invalid|Hash Sum mismatch", log):
        return BuildFailure(
            says=f"the signature or a hash of the archive of '{suite}' is wrong: its files were"
            " changed after they were signed, or on the way",
            hint="use another mirror; one that is being updated is right again in an hour",
        )
    if re.search(r"NO_PUBKEY|public key is not available|is not signed", log):
        return BuildFailure(
            says=f"this host does not know the key that signed '{suite}'",
            hint="apt install debian-archive-keyring",
        )
    failed = re.search(r"^modules: (.+)$", log, flags=re.MULTILINE)
    if failed:
        return BuildFailure(
            says=failed.group(1),
            hint="correct modules in the image's recipe",
            error=InputError,
        )
    if "Unable to locate package" in log or "has no installation candidate" in log:
        found = re.search(r"E: (?:Unable to locate package|Package) '?([a-z0-9.+-]+)", log)
        name = found.group(1) if found else "?"
        return BuildFailure(
            says=f"'{suite}' has no package '{name}'",
            hint="correct kernel_package, packages or components in the image's recipe",
            error=InputError,
        )
    if re.search(r"Could not allocate (block|inode) in ext2 filesystem", log):  # mke2fs -d
        return BuildFailure(
            says="the packages do not fit into its root file system",
            hint="give the image's recipe a larger disk_size",
            error=InputError,
        )
    if re.search(r"Could not resolve|Could not connect|Unable to connect|Failed to fetch", log):
        return BuildFailure(
            says=f"the package archive of '{suite}' could not be reached",
            hint="`lab doctor` tries the archive; behind a proxy, set http_proxy",
        )
    return None


_EXPIRED: Final = re.compile(
    r"Release file for \S*?/dists/(\S+?)/(?:In)?Release is (?:expired|not valid anymore)"
    r"(?: \(invalid since (\d+d|\d+h|\d+min|\d+s))?"
)
"""Suite, and time since: ``… dists/sid/InRelease is expired (invalid since 3d 2h 1min 5s)``."""
ACCEPT_EXPIRED: Final = "LAB_ACCEPT_EXPIRED"
"""Environment variable with the meaning of ``--accept-expired``."""


def parse_releases(text: str) -> tuple[ArchiveRelease, ...]:
    """Parse the Release files; each begins with ``Suite:`` or ``Codename:``, in any order."""
    found: list[dict[str, str]] = []
    for line in text.splitlines():
        match = re.fullmatch(r"(Suite|Codename|Date|Valid-Until): (.+)", line)
        if match is None:
            continue
        key, value = match[1], match[2].strip()
        if not found or key in found[-1]:
            found.append({})
        found[-1][key] = value
    return tuple(
        ArchiveRelease(
            suite=one.get("Codename") or one.get("Suite", "?"),
            date=_day(one["Date"]),
            valid_until=_day(one["Valid-Until"]) if "Valid-Until" in one else None,
        )
        for one in found
        if "Date" in one
    )


def _day(text: str) -> datetime:
    """Parse a date such as ``Fri, 06 Nov 2026 08:08:01 UTC``."""
    try:
        return parsedate_to_datetime(text.replace("UTC", "+0000"))
    except ValueError:
        raise ToolError(f"a Release file of the archive has the date '{text}'") from None
