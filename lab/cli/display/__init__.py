"""Runs while they run: progress, the live screen, estimates, names of cells."""
