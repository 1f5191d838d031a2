"""Preparation before a run's first cell: images, guest jobs, snapshots, real disks, suites."""
