"""Workloads, disk models, array kinds and faults, one file each; the catalog finds them."""
