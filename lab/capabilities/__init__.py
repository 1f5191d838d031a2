"""What the lab can do with runs, one folder each. `lab.cli.commands` finds them by their names.

A folder has ``command.py`` (its commands), and of these what it needs: ``model.py`` (data),
``logic.py`` or ``logic/`` (pure), ``run.py`` (what it does), ``page.py`` (what it prints). It may
import the core rooms and no other capability; ARCHITECTURE.md names the exceptions. Nothing imports
it: ``make rooms`` removes each folder and its tests, ``tests/*/capabilities/NAME``.

To add one: the folder, its tests, and ``make reference``. Nothing is registered.
"""
