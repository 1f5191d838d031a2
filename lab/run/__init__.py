"""Running a scenario: its cells, the guests that they run in, the worker, the steps."""
