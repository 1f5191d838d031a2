"""Programs that run in a guest, with its python3 (3.9 or newer).

The lab sends them as source text and never imports them. They import only the standard library.
Each takes its arguments as one JSON object, and prints a JSON object as its last line.
"""
