"""Guests in virtual time: sealed guests, their snapshots, and unsealed guests with SSH."""
