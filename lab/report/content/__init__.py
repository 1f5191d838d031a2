"""What reports are made of: a run gathered, its values in words, its answer, its tables. Pure."""
