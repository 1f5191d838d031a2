"""Contents of reports: a run's data, values as text, reliability and tables. Pure."""
