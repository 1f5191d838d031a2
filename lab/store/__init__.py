"""Directories of runs and of matrix runs: the only reader and writer of them."""
