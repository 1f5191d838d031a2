"""Runs in the form of other programs: plans and cells as shell scripts. Pure."""
