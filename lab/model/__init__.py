"""The words of the lab as data: frozen, validated, knowing nothing of the world."""
