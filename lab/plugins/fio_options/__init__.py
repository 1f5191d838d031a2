"""fio's options and their types, and its spelling of sizes and times."""
