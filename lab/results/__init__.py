"""From stored runs to documents: result, comparison, history, noise, reports, exports."""
