"""The lab for other projects' tests: a plug-in of pytest, with guests and scenarios as tests.

``plugin`` is loaded by every pytest that finds the package installed, so it imports nothing but
pytest; what a test needs of the lab is imported when the first one asks for it.
"""
