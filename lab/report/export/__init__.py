"""Plans and cells as shell scripts. Pure."""
