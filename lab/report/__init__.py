"""Verdicts and results as text, HTML and charts. Pure: a stored run gives the same output again."""
