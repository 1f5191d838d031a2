"""Results: measurements, the result document, comparisons, history. Data only."""
