"""What a run needs before its first cell:
images, jobs of guests, snapshots, real disks, suites.
"""
