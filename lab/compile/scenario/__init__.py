"""Compiles a scenario's file to its checked cells. Pure."""
