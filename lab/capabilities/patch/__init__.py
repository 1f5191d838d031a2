"""A patch series for md or mdadm: a matrix without and with it, compared."""
