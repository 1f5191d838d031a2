"""A guest's procedure, its domain's XML, and programs for sealed guests. Pure."""
