"""Workloads: commands on a target, and parsers of their output. One file each; the file's name is
the tool's name.

How to add one
--------------
1. Write ``lab/plugins/workloads/NAME.py``. Scenarios then use ``tool: NAME``. Nothing is
   registered.
2. Declare the tool's parameters as a ``lab.core.base.Model``, with the tool's own names (a field
   alias for Python keywords). Sizes are ``Size``: people write ``1MiB``. A validator refuses
   what the tool would refuse, and says what to write instead.
3. Give the file a class with the members of ``lab.model.plugin.WorkloadTool``, and end it with
   ``WORKLOAD: WorkloadTool = YourClass()``, so that mypy checks it there:

   * ``script(parameters, target)`` returns shell lines for the guest's ``/bin/sh`` (dash), with
     every value quoted by ``lab.model.execution.procedure.words``. On a file system ``target`` is a
     path that does not exist yet: a file for some tools, a directory for others. Workloads of one
     cell use ``{target}.NAME`` to stay apart.
   * ``parse(parameters, outputs)`` returns every metric in base units (bytes per second, seconds).
     If it cannot read the output, or the tool did less than requested, it raises ``ToolError`` with
     the text; it never returns 0. A metric is left out only if the tool itself reports none.
   * ``parameters`` have the type ``Any`` there: ``checked`` gives them the tool's type.
   * ``measures(parameters)``, ``needs(parameters)``: metrics and programs, if they depend on the
     parameters. ``files``: parameters that name a text file of the host. ``any_disks``: the target
     is any number of bare disks.
   * ``destroys(parameters)``: whether the target's data is lost.
   * ``seeded(parameters, seed)`` and ``draws_places(parameters)``, if it draws random numbers: its
     parameters with a seed, and whether the seed decides places and is not written.

4. Record real outputs: ``tests/golden/workloads/NAME/CASE/`` holds ``stdout`` and ``stderr`` as the
   tool printed them, and ``expected.json`` with ``parameters`` and either ``metrics`` or ``error``
   (words of the message). ``tests/unit/test_workloads.py`` finds the case by itself; it requires
   one of each kind.

A suite of tests (``mdadm_tests``, ``blktests``) also has the members of
``lab.model.scenario.suite.Suite``: then each of its tests has a result. What suites share is in
``_suites.py``.

A variant of a tool (a block size, a queue depth) is a value in a scenario, not a new file.
"""
