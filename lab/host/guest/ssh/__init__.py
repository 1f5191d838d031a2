"""SSH into guests: shells, copied files and directories, set-up after a restore."""
