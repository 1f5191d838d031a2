"""Guests with virtual time: sealed ones, their snapshots, and unsealed ones, which keep SSH."""
