"""Finds the version, patch or commit that changed a verdict or a value."""
