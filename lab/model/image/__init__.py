"""Images of guests: recipes and manifests. Data only."""
