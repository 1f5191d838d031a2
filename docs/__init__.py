"""Documents, and the programs that generate some of them."""
