"""Disk models: how a virtual disk gets its speed. One file each; the file's name is the model's
name.

How to add one
--------------
1. Write ``lab/plugins/disks/NAME.py``. Scenarios then use ``disks.model: NAME``. Nothing is
   registered.
2. Give it a class with the members of ``lab.model.plugin.DiskModel``, and end the file with
   ``DISK: DiskModel = YourClass()``, so that mypy checks it there:

   * ``problems(disk)`` yields a ``Problem`` for every field that QEMU or libvirt would refuse.
     Begin with ``yield from drive_problems(disk)``: serial, cache, aio and format are common to
     all models. Keys are relative to the disk: ``throttle.total_bytes_per_second``.
   * ``create(disk, path)`` returns the steps that create the disk's file, and name it for removal.
     Usually that is ``create_file``; ``serve`` adds a server, to which ``network_element`` connects
     the guest.
   * ``xml(disk, serial=…, path=…, index=…)`` returns libvirt's ``<disk>``. ``drive_element`` makes
     the common part; ``as_text`` prints it.
   * ``probes(disk)`` returns the measurements that a bare disk must pass in real time, and
     ``drive(disk)`` the drive that it models. A model has one of them: drives are judged in virtual
     time.
   * ``rotational(disk)`` and ``report(disk, path)`` are optional.

3. The file only returns data: no processes, files or clocks.
4. Add the model to the test in ``tests/unit/test_throttle.py`` that uses libvirt's own parser.

How to add a parameter of every disk ------------------------------------ Add a field to ``Disk``
(``lab/model/scenario/document.py``). If libvirt's ``<driver>`` and QEMU take it as it is, add a
line to ``DRIVER_OPTIONS`` (``_drives.py``). Then files, real disks and pytest's marker have it.
Cells without it keep their ids.

A variant of a model (a speed, a burst) is a value in a scenario, not a new file.
"""
