"""`lab rescue`: reads what is left of an md array, and tries repairs in guests on overlays."""
