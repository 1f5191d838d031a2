"""The lab compared with hand-written QEMU (run), and its published tables (claims, theory).

`run` uses the lab's command line only; the tables read stored runs through the lab's own modules.
"""
