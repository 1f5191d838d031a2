"""Finds the version of Linux or mdadm that changed a claim's verdict, or a value."""
