"""From raw output to verdicts: measure, predict, judge, compare. Pure."""
