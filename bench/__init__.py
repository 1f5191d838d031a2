"""The benchmark: the lab beside QEMU by hand, on one machine, in one run, with one image.

``python -m bench.run`` measures and writes ``docs/benchmarks.json`` and ``docs/benchmarks.md``;
``make bench`` does that. Nothing here imports the lab: it is measured from outside, by its command
line, its result documents and ``/proc``.
"""
