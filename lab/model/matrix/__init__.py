"""Matrices of scenarios and records of their runs. Data only."""
