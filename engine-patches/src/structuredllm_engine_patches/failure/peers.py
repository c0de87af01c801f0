"""Are the processes on the other nodes still connected? Pure: counts the events of a message socket.

A multi-node engine's leader publishes its steps over ZeroMQ, which reconnects for ever and tells nobody:
when the leader is gone the others wait for its next step until somebody ends them. The socket's events do
tell. Only a connection that had completed its handshake counts, so a port scan ends nobody's engine.
"""

from enum import Enum, auto


class Event(Enum):
    """Events of a socket that matter here."""

    CONNECTED = auto()
    """A peer completed its handshake."""

    REFUSED = auto()
    """A connection failed in its handshake; its own `DISCONNECTED` follows."""

    DISCONNECTED = auto()
    """A connection is gone."""


class Peers:
    """Counts one socket's peers, which are all connected when the counting begins.

    Attributes:
        expected: how many have to be connected.
        connected: how many are.
    """

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.connected = expected
        self._refused = 0

    def note(self, event: Event) -> bool:
        """Take in an event and return whether a peer is missing now."""
        if event is Event.CONNECTED:
            self.connected += 1
        elif event is Event.REFUSED:
            self._refused += 1
        elif self._refused:
            self._refused -= 1
        else:
            self.connected -= 1
        return self.connected < self.expected
