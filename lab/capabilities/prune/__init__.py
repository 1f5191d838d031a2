"""Frees disk space: what was not used for longest goes first."""
