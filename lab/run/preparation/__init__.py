"""What a run needs before its first cell:
images, kinds of guests, saved guests, real disks, suites.
"""
