"""All code that uses dask: runs whose cells other hosts execute."""
