"""Disks for guests in virtual time: the guest's driver (C) and the host's side (Python)."""
