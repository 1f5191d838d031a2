"""Disks for guests with virtual time: the guest's driver (C), the host's side (Python)."""
