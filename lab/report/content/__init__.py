"""Contents of reports: a run's data, values as text, answer and tables. Pure."""
