"""Everything that speaks dask: a run whose cells are handed to other hosts."""
