"""Matrix files and records of matrix runs. Data only."""
