"""Documents from stored runs: result, comparison, history, noise, reports, exports."""
