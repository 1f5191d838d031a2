"""A static site of all runs, to explore and share."""
