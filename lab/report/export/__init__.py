"""Runs for other programs: JUnit, badges. Pure."""
