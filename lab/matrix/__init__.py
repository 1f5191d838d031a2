"""Matrix runs: file, jobs, shards, order, execution."""
