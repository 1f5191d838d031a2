"""Steps that create one md array of block devices (``create``) and verify it (``verify``).

The array kinds ``md`` (whole disks) and ``segments`` (partitions) use them.
"""
