"""The command groups, a file each."""
