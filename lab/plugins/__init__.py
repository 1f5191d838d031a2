"""Workloads, disk models, kinds of arrays and faults:
one file each; and the catalog that finds them.
"""
