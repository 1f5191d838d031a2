"""All side effects: processes, libvirt, SSH, files, clocks."""
