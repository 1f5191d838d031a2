"""Verdicts and results to text. Pure: what is printed can be made again from a stored run."""
