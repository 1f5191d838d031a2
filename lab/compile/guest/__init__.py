"""A guest's life as steps, its domain's XML, and programs for sealed guests. Pure."""
