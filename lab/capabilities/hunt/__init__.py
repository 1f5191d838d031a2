"""Runs seed after seed until one goes wrong, and stops a stored cell at a time to look at it."""
