"""The scenario file. Data only."""
