"""Array kinds: disks combined in the guest. One file each; the file's name is the kind's name.

How to add one
--------------
1. Write ``lab/plugins/arrays/NAME.py``. Scenarios then use ``array.kind: NAME``. Nothing is
   registered.
2. Give it a class with the members of ``lab.model.plugin.ArrayKind``, and end the file with
   ``ARRAY: ArrayKind = YourClass()``, so that mypy checks it there:

   * ``problems(array, disks)`` yields a ``Problem`` for each value that the tools or the kernel
     would refuse, with the field's dotted name: ``array.chunk``, ``disks.count``. A guest boots
     only if there are none. ``idle_by`` names the field that makes another one unused, such as a
     bitmap's chunk without a bitmap: where that field is an axis, this one counts as not given.
   * ``sizes(array, disks)`` are what workloads may name in braces: ``{stripe}``.
   * ``lacks(array, facts)`` yields one for each feature that an image's kernel or programs are
     known to lack. The message is about the image: ``it has no ZFS``.
   * ``target(array)`` is the path in the guest that workloads use.
   * ``filesystem`` is the type of file system that only this kind makes, or ``None``.
   * ``fresh(array)``, ``rest(array, waits)`` and ``state(array)`` are shell lines: drop caches;
     undo what earlier workloads did to it; print the state.
   * ``assemble(array, disks, sizes, filesystem)`` returns the steps that build it: check first that
     the disks are empty; then build, with an undo that is harmless if nothing was built; and end
     with a ``Verify`` of everything that the scenario requests.

3. The file only returns data: no processes, files or clocks. Scripts are POSIX sh (dash). Each step
   is a round trip of 0.1 s or more: use few.
4. Code that theory needs too (layouts, sizes) belongs into its own package, as md's in
   ``lab/md/facts``. The steps of one md array, on any devices, are in ``lab/md/steps``.
"""
