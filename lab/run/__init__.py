"""Running a scenario: preparation, scheduling, workers, steps."""
