"""Runs the sealed cells of a stored run again, and compares them byte for byte."""
