"""Pages and tables for a terminal. Pure."""
