"""The lab's data types: frozen, validated, without any access to files, processes or clocks."""
