"""Measures the lab from outside: against hand-written QEMU (run), and its tables (claims, theory).

`run` uses only the lab's command line. The tables read stored runs through the lab's modules.
"""
