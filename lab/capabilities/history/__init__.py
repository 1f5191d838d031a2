"""Compares runs, and shows a value over all runs and how far runs differ by noise."""
