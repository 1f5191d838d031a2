"""What is asked: the scenario and its parts. Data only."""
