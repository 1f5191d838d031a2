"""A virtual test lab for Linux software RAID."""

__version__ = "0.1.0"
