"""Faults of a guest or its disks, and commands to md. One file each; the file's name is the fault's
name.

How to add one
--------------
1. Write ``lab/plugins/faults/NAME.py``. Scenarios then use ``fault: NAME``. Nothing is registered.
2. Declare its parameters as a ``lab.core.base.Model``. A disk is ``disk: Position``, its position
   in the cell, from 1. ``name``, ``before``, ``after``, ``during``, ``at`` and ``check`` belong to
   every fault.
3. Give the file a class with the members of ``lab.model.plugin.FaultKind``, and end it with
   ``FAULT: FaultKind = YourClass()``, so that mypy checks it there:

   * ``problems(parameters, scene)`` yields a ``Problem`` for each impossible parameter.
   * ``steps(parameters, scene)`` runs on the host; ``script(parameters, scene)`` runs in the guest,
     by ``sh -e``. Members' counters are read between the two. ``key=value`` lines that the script
     prints are in ``outputs.stdout``; raw output that a step captures under
     ``scene.tag + ".WHAT"`` is ``outputs.files["WHAT.txt"]``.
   * ``cuts``: the guest ends; the steps must boot it again. ``unplugs``, ``plugs``: the fault takes
     its ``disk`` out of the guest, or puts it back.
   * ``parse(parameters, outputs)`` returns its own metrics. All faults have ``COMMON``.

4. Waiting for md, its state afterwards, the check, the kernel's messages and acknowledged writes
   are common to all faults: ``lab.compile.cell.faults``.

The file only returns data: no processes, files or clocks.
"""
