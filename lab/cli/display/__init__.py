"""How runs look while they go on: progress, the live screen, estimates, names of cells."""
