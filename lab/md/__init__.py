"""Linux md and mdadm: facts, steps that build an array, theory. Pure."""
