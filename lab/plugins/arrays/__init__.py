"""Array kinds: disks combined in the guest. One file each; its name is its name.

How to add one
--------------
1. Write ``lab/plugins/arrays/NAME.py``. Scenarios then say ``array.kind: NAME``; nothing is
   registered.
2. Give it a class that has what ``lab.model.plugin.ArrayKind`` demands, and end the file with
   ``ARRAY: ArrayKind = YourClass()``, so that mypy checks it there:

   * ``problems(array, disks)`` yields a ``Problem`` for everything that the tools or the kernel
     would refuse, under the field's dotted name: ``array.chunk``, ``disks.count``. A guest is
     booted only when there are none. ``idle_by`` names the field that leaves another one without
     a use, such as a bitmap's chunk where there is no bitmap: in a matrix that is no problem.
   * ``lacks(array, facts)`` yields one for everything that an image's kernel or programs, as far
     as they are known, cannot do. The message speaks of the image: ``it has no ZFS``.
   * ``target(array)`` is the path in the guest at which workloads are aimed.
   * ``filesystem`` is the type that only this kind can make, or ``None``.
   * ``fresh(array)`` and ``state(array)`` are shell lines: forget what is cached, print the state.
   * ``assemble(array, disks, sizes, filesystem)`` returns the steps that build it: see first that
     nothing is on the disks; then build, with an undo that is harmless where nothing was built; and
     end with a ``Verify`` that reads back everything the scenario asked for. What cannot be read
     back is not claimed.

3. Nothing in the file may touch the world; it returns data. Scripts are POSIX sh (dash). Each step
   is a round trip of a tenth of a second or more: keep them few.
4. What theory must know as well (layouts, sizes) belongs into a package of its own, as md's into
   ``lab/md/facts``. The steps of one md array, of whatever devices, are in ``lab/md/steps``.
"""
