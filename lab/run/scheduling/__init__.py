"""Which cell runs where and when: `decide` is pure, `executor` carries its actions out."""
