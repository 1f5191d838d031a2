"""Lists real disks that may be used, and measures them."""
