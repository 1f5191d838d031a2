"""Which cell runs where and when, and what becomes of one that went wrong."""
