"""Compiles a cell to its procedure: disks, array, workloads and faults as steps. Pure."""
