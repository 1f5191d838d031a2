"""What md and QEMU's throttle must give, from their rules alone: pure, milliseconds for a cell.

::

    bucket      what one throttled disk admits, and when
    layout      where md puts things
    stripe      what RAID 4, 5 and 6 read and write: the stripe cache, rmw and rcw
    paths       one request to the array as requests to members, for each level
    sequence    the clock of a sequential stream
    prediction  one stream on one array
    cell        a scenario's cell, and why theory may have nothing to say

A new kind of workload is a clock beside ``sequence``, a new model of a disk a meter beside
``bucket``, and a bitmap a path around another path.
"""

from __future__ import annotations

from lab.theory.bucket import Direction, Limit, Limits, Scope, Unit
from lab.theory.cell import predict, why_not
from lab.theory.layout import Geometry, Level, level_of
from lab.theory.paths import Stream
from lab.theory.prediction import Bottleneck, StreamPrediction, predict_stream
from lab.theory.sequence import MemberLoad
from lab.theory.stripe import StripeRules

__all__ = [
    "Bottleneck",
    "Direction",
    "Geometry",
    "Level",
    "Limit",
    "Limits",
    "MemberLoad",
    "Scope",
    "Stream",
    "StreamPrediction",
    "StripeRules",
    "Unit",
    "level_of",
    "predict",
    "predict_stream",
    "why_not",
]
