"""What is done: procedures of steps, jobs for workers, what workers tell. Data only."""
