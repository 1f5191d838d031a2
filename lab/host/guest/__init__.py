"""Guests on this host: registry, backends, disk servers, snapshots, watchdog."""
