"""`lab rescue`: reads what is left of an md array, and tries repairs in guests on overlays.

Disks are open for reading only (``host/real_disks/inputs.py``). Of ``logic/``: ``diagnosis`` says
what they were, ``attempts`` chooses ways to start the array, ``arrangement`` finds its shape in the
data, ``judge`` ranks the outcomes, ``repair`` writes the commands. ``host/guest/overlays.py`` runs
a script over qcow2 overlays in a guest without network. No command runs on a real disk.
"""
