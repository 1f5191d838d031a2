"""The one room with side effects: processes, libvirt, SSH, files, clocks."""
