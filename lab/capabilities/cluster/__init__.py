"""Runs cells on other machines. All code that uses dask.

dask assigns cells to hosts before the scheduler, and each host runs the same scheduler on the cells
that it receives. A sealed cell's task has the digest of its inputs as its key, so dask runs it once
for all who want it meanwhile.
"""
