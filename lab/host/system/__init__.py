"""The host itself: processes, files, locks, clocks, keys, paths, accelerator, load."""
