"""Procedures of steps, jobs for workers, events of workers. Data only."""
