"""Use cases: what each command does, without a word about how it is printed."""
