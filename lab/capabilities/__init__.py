"""Capabilities: each is one folder with its model, pure logic, run, page and command."""
