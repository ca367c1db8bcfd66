"""The states of a session and of the routes to it, and what leads from one to another. Pure.

Theory of operation. A session begins when a publisher announces it: MET. The publisher is asked for
an echo, which says where its streams begin: JOINED, and its messages are delivered. From then on
two things are watched: does anything come over the data path, and does the publisher answer over
the recovery channel? ::

    data path  recovery
    yes        (either)  JOINED
    no         yes       ONE_WAY: what is missing is asked for, and comes, over the recovery channel
    no         no        SILENT: what is missing will be lost as `publisher_gone`

When another incarnation of the publisher is heard, it may use sequences again: UNCONFIRMED, nothing
of the session is taken until its echo has said where it goes on; it is the same where one that
was silent is back and its echo is awaited. A session ends when another one
has its place: ENDED, or LEFT where it was never joined. It is back when it is announced again.
GIVEN_UP: it fell silent before it was joined, and what had come of it was delivered.

A route to a session, to its publisher or over a relay, has a state of its own: who is announced
there is asked for an echo, may say that it closes, and then waits to hear that nothing is missing::

    ABSENT ──▶ ASKED ──echo──▶ OPEN ──▶ CLOSING ──its last heads──▶ LAST_KNOWN ──▶ COMPLETE

One that is replaced is ABSENT, or CLOSED where it had said that it closes.

An event that is not in the table of its state changes nothing: frames come late.
"""

from enum import IntEnum, auto
from typing import Final


class State(IntEnum):
    """Where a session stands."""

    MET = auto()
    JOINED = auto()
    ONE_WAY = auto()
    SILENT = auto()
    UNCONFIRMED = auto()
    GIVEN_UP = auto()
    ENDED = auto()
    LEFT = auto()


class Event(IntEnum):
    """What happens to a session."""

    ECHOED = auto()
    """Its publisher has said where its streams stand."""
    RELAY_ECHOED = auto()
    """A relay has."""
    OTHER_INCARNATION = auto()
    """Another incarnation of its publisher was heard of."""
    HEARD = auto()
    """Something came over the data path again."""
    ANSWERED = auto()
    """It answered over the recovery channel while the data path is silent."""
    SILENCE = auto()
    """Nothing has come over any channel for `publisher_timeout`."""
    ABANDONED = auto()
    """It was silent for so long that it is not waited for."""
    REPLACED = auto()
    """Another session has its place."""
    ANNOUNCED = auto()
    """It is announced once more after its end."""
    UNREACHED = auto()
    """Its publisher does not answer, and relays have it."""
    RELAYED = auto()
    """A relay says that it has it."""


_S, _E = State, Event
_UNJOINED: Final = {
    _E.ECHOED: _S.JOINED,
    _E.RELAY_ECHOED: _S.JOINED,
    _E.ABANDONED: _S.GIVEN_UP,
    _E.REPLACED: _S.LEFT,
}
_JOINED: Final = {
    _E.ECHOED: _S.JOINED,
    _E.RELAY_ECHOED: _S.JOINED,
    _E.OTHER_INCARNATION: _S.UNCONFIRMED,
    _E.HEARD: _S.JOINED,
    _E.ANSWERED: _S.ONE_WAY,
    _E.SILENCE: _S.SILENT,
    _E.REPLACED: _S.ENDED,
}
TRANSITIONS: Final[dict[State, dict[Event, State]]] = {
    _S.MET: _UNJOINED,
    _S.GIVEN_UP: _UNJOINED,
    _S.JOINED: _JOINED,
    _S.ONE_WAY: _JOINED,
    _S.SILENT: _JOINED,
    _S.UNCONFIRMED: {
        _E.ECHOED: _S.JOINED,
        _E.UNREACHED: _S.JOINED,
        _E.REPLACED: _S.ENDED,
    },
    _S.ENDED: {_E.ANNOUNCED: _S.UNCONFIRMED, _E.RELAYED: _S.JOINED},
    _S.LEFT: {_E.ANNOUNCED: _S.MET, _E.RELAYED: _S.MET},
}
WAS_JOINED: Final = frozenset({_S.JOINED, _S.ONE_WAY, _S.SILENT, _S.UNCONFIRMED, _S.ENDED})
"""An echo came, over any route."""
IS_OVER: Final = frozenset({_S.ENDED, _S.LEFT})
"""Another session has its place."""


class RouteState(IntEnum):
    """Where a route to a session stands."""

    ABSENT = auto()
    """It leads nowhere: its publisher was not announced, or another session has its place."""
    ASKED = auto()
    OPEN = auto()
    CLOSING = auto()
    LAST_KNOWN = auto()
    """It closes, and its last heads came over the recovery channel: no echo is needed."""
    COMPLETE = auto()
    """It closes, and has heard that nothing is missing: it may be gone."""
    CLOSED = auto()
    """It closed, and another session has its place: it leads nowhere."""


class RouteEvent(IntEnum):
    """What happens to a route."""

    ANNOUNCED = auto()
    """Who is there is announced, and does not close."""
    ECHOED = auto()
    """It has said where the streams stand."""
    CLOSES = auto()
    LAST_HEADS = auto()
    """It closes, and has said its last heads over the recovery channel."""
    REPORTED = auto()
    """It has heard that nothing is missing."""
    REPLACED = auto()
    """Another one has its place."""


_R, _V = RouteState, RouteEvent
_OPEN: Final = {_V.REPLACED: _R.ABSENT, _V.CLOSES: _R.CLOSING, _V.LAST_HEADS: _R.LAST_KNOWN}
_CLOSING: Final = {
    _V.REPLACED: _R.CLOSED,
    _V.ANNOUNCED: _R.OPEN,
    _V.REPORTED: _R.COMPLETE,
}
ROUTE_TRANSITIONS: Final[dict[RouteState, dict[RouteEvent, RouteState]]] = {
    _R.ABSENT: {_V.ANNOUNCED: _R.ASKED},
    _R.ASKED: {**_OPEN, _V.ECHOED: _R.OPEN},
    _R.OPEN: _OPEN,
    _R.CLOSING: {**_CLOSING, _V.LAST_HEADS: _R.LAST_KNOWN},
    _R.LAST_KNOWN: _CLOSING,
    _R.COMPLETE: {_V.REPLACED: _R.CLOSED, _V.ANNOUNCED: _R.OPEN},
    _R.CLOSED: {_V.ANNOUNCED: _R.ASKED},
}
