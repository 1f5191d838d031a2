"""Units, errors, versions, YAML, statistics. Imports nothing of the lab."""
