"""``lab rescue``."""

from __future__ import annotations

from lab.capabilities.rescue.command import rescue
from lab.cli.app import DISKS, app

app.command(rich_help_panel=DISKS)(rescue)
