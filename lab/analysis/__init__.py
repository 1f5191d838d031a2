"""From raw output to verdicts:
measure, predict, judge, compare. Pure; imports plug-ins and below.
"""
