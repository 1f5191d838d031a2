"""HTML reports of runs, and their site. Pure."""
