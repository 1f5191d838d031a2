"""Guests through libvirt:
domains, disks that are plugged in, real disks that are handed over.
"""
