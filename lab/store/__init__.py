"""Directories of runs and of matrix runs. No other package reads or writes them."""
