"""SSH into guests: shells, files that are sent, what a restored guest is told first."""
