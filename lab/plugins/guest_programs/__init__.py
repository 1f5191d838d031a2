"""Programs that run in a guest, with its python3 (3.9 or newer).

They are sent as source text and import only the standard library; the lab never imports them. Each
takes its arguments as one JSON object and prints one as its last line.
"""
