"""Happens-before, as vector clocks: what must be done by the time something else starts.

A *ticket* names one launch.  A *clock* says, for each stream, up to which launch everything is
known to be done.  Clocks grow by the stream's own launches, by events, and by the host: whatever
the host has observed is done for everything that it launches later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

HOST = "host"
"""The host's own name among the streams: host accesses to shared memory have tickets too."""


class Ticket(NamedTuple):
    """One launch: the ``clock``-th one on ``stream`` (counted from 1).

    Whoever must not be released before the launch is done keeps its ticket.
    """

    stream: str
    clock: int


Clock = Mapping[str, int]
"""For each stream the last launch known to be done; a missing stream means none."""


def known(ticket: Ticket, clock: Clock) -> bool:
    """Is the launch done for whoever has this clock?"""
    return clock.get(ticket.stream, 0) >= ticket.clock


def merge(into: dict[str, int], other: Clock) -> None:
    """Whatever ``other`` knows, ``into`` knows from here on."""
    for stream, done in other.items():
        if into.get(stream, 0) < done:
            into[stream] = done
