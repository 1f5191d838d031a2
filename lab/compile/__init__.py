"""Compiles scenarios to cells, procedures and libvirt's XML. Pure."""
