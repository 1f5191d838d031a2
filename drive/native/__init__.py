"""Guests in virtual time without emulation: Linux as a program of the host (User-Mode Linux)."""
