"""Display of a running run: progress, screen, estimates, names of cells."""
