"""Charts of a run: bars, lines and heat maps as Vega-Lite specifications, drawn offline. Pure."""
