"""libvirt: domains, disk hot-plug, and real disks passed to QEMU."""
