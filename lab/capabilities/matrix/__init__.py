"""Matrix runs: scenarios × images x kernels, one job after the other."""
