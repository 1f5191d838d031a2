"""Guests on this host: the register, benches, servers of disks, saved guests, the watchdog."""
