"""Workloads: what is done to a target, and how its output is read. One file each.

How to add one
--------------
1. Write ``lab/workloads/NAME.py``. Scenarios then say ``tool: NAME``; nothing is registered.
2. Declare the tool's parameters as a ``lab.model.base.Model``, under the tool's own names (a
   field alias where the name is a word of Python's). Sizes are ``Size``, so that people write
   ``1MiB``. Refuse in a validator what the tool would refuse, in a sentence that says what to do.
3. Give the file a class with the members of ``lab.model.plugin.WorkloadTool``, and end it with
   ``WORKLOAD: WorkloadTool = YourClass()``, so that mypy checks it there:

   * ``script(parameters, target)`` returns shell lines for the guest's ``/bin/sh`` (dash), with
     every value quoted by ``lab.model.procedure.words``. On a file system ``target`` is a path
     that is not there yet: a file for some tools, a directory for others. Workloads that share a
     cell keep apart by ``{target}.NAME``.
   * ``parse(parameters, outputs)`` returns every metric in base units (bytes per second, seconds).
     Where it cannot read the output, or the tool did less than it was asked to, it raises
     ``ToolError`` with the text; it never returns 0. A metric is left out only where the tool says
     itself that it has none.
   * ``destroys(parameters)`` says whether the data on the target are gone afterwards.

4. Record real outputs: ``tests/golden/workloads/NAME/CASE/`` holds ``stdout`` and ``stderr`` as
   the tool printed them, and ``expected.json`` with ``parameters`` and either ``metrics`` or
   ``error`` (words of the message). ``tests/unit/test_workloads.py`` finds the case by itself;
   it wants at least one of each kind.

A variant of a tool (a block size, a queue depth) is a value in a scenario, never a new file.
"""
