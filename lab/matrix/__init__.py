"""Matrix runs: the file, its parts, the order in which they are run, what is kept of each."""
