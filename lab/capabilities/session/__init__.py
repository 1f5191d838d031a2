"""A guest with disks, without a scenario's file: one command in a fresh guest, or a guest to use by
hand."""
