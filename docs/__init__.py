"""What people read, and the programs that make the parts of it that could go stale."""
