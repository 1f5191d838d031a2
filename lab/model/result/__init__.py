"""What came out: measurements, the result document, comparisons, history. Data only."""
