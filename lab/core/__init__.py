"""What everything else may import:
units, errors, versions, YAML, statistics. Imports nothing of the lab.
"""
