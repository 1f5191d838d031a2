"""Runs cells on other machines. All code that uses dask."""
