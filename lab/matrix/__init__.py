"""Matrix runs: the file, its jobs, shards and order; running them."""
