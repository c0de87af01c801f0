"""Are the processes on the other nodes still connected? Pure: follows the events of a message socket.

A multi-node engine's leader publishes its steps over ZeroMQ, which reconnects for ever and tells nobody:
when the leader is gone the others wait for its next step until somebody ends them. The socket's events do
tell. All peers are connected when the watching begins; whoever comes later is a stranger, and a port scan
must end nobody's engine.
"""

from enum import Enum, auto

MAX_STRANGERS = 1024
"""Connections that are open at a time; more are not told from peers."""


class Event(Enum):
    """Events of a socket that matter here."""

    CAME = auto()
    """A connection was made or accepted; nothing says yet that it speaks the protocol."""

    GONE = auto()
    """A connection is gone."""


class Peers:
    """The peers of one socket."""

    def __init__(self) -> None:
        self._strangers: set[int] = set()

    def is_lost(self, event: Event, connection: int) -> bool:
        """Take in an event and return whether a peer is gone by it.

        Args:
            event: what happened.
            connection: number of the connection (its file descriptor), which is used again when it is gone.
        """
        if event is Event.CAME:
            if len(self._strangers) < MAX_STRANGERS:
                self._strangers.add(connection)
            return False
        if connection in self._strangers:
            self._strangers.remove(connection)
            return False
        return True
