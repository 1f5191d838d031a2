"""What fio takes: its options and their types, and how sizes and times are spelled."""
