"""Pages of runs and their site. Pure."""
