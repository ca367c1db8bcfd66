"""At which of its addresses a publisher of a multicast is asked over the recovery channel. No I/O.

Where its endpoint names no host, that is one from which its announcements come. It may go away: the
line to it does not work any more, or the publisher has another address now. Announcements may be
anybody's, so the former connection stays in use until another one is shown to be to the publisher::

    nothing answers for SILENT_NS, and announcements come from another address
        └──▶ a connection there, of its own: JOINED ──▶ ADMITTED(the known token) ──▶ in use
                                                   └──▶ none, or another ──▶ the next address

A session that is not joined has nothing to lose yet: the next address is used at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from p2pmsg import control
from p2pmsg.subscriber.confirmation import Confirmation, Joiner
from p2pmsg.subscriber.effects import Effects, LineWarnings
from p2pmsg.subscriber.sessions import Session
from p2pmsg.subscriber.settings import Settings
from p2pmsg.wire import Frame, Kind
from recovery.checks import to_ns
from transports.endpoint import host_of

_MS: Final = 1_000_000
SILENT_NS: Final = 3000 * _MS
"""How long nothing is answered until another address is tried."""
ASK_NS: Final = 1000 * _MS
"""How long nothing is answered until the publisher is asked whether it is there."""
TRIAL_NS: Final = 2000 * _MS
"""How long another address has to answer."""
WAIT_NS_MAX: Final = 30_000 * _MS
"""The longest wait between two tries of a session; it doubles while they are in vain."""
UNHEARD_NS: Final = 30_000 * _MS
"""How long a publisher is not heard at its former address, and does not answer there, for one to be
believed that has forgotten us: it does not know the token any more, and the session's life."""
ADDRESSES_MAX: Final = 8
"""Addresses of a session that are remembered, over all lines; one that was not heard for
`publisher_timeout` makes way for another."""
_WILDCARDS: Final = ("tcp://*:", "tcp://0.0.0.0:", "tcp://[::]:")
_Place = tuple[int, Any]
"""A line, and the address that datagrams come from over it."""


@dataclass(slots=True)
class _Announced:
    """An address that announcements of a session come from."""

    heard_ns: int
    tried_ns: int = -1


@dataclass(slots=True)
class _Seeking:
    """What is known of one session's addresses."""

    announced: dict[_Place, _Announced] = field(default_factory=dict)
    unanswered_ns: int | None = None
    """Since when nothing that was asked is answered; None: it is."""
    due_ns: int = 0
    wait_ns: int = SILENT_NS
    trial: tuple[int, _Place, int] | None = None
    """The key of another connection, whom it is to, and until when it may answer."""


class RecoveryPlaces:
    """Looks for another address of publishers that do not answer.

    Args:
        settings: the subscriber's.
        joiner: joins sessions.
        confirmation: asks publishers.
        sources: where the recovery channel of each session is connected to: (line, address).
        peers: the sessions by their ids.
        effects: takes what the shell is to do and to send.
        rng: source of the connections' keys.
        connected: called with a session whose recovery channel is another connection now.

    """

    def __init__(
        self,
        settings: Settings,
        joiner: Joiner,
        confirmation: Confirmation,
        *,
        sources: dict[int, _Place],
        peers: Mapping[int, Session],
        effects: Effects,
        rng: Random,
        connected: Callable[[Session], None],
    ) -> None:
        self._settings = settings
        self._joiner = joiner
        self._confirmation = confirmation
        self._connected = connected
        self._sources = sources
        self._peers = peers
        self._effects = effects
        effects.notes_asked = True
        self._rng = rng
        self._recent_ns = to_ns(settings.config.publisher_timeout)
        self._found: dict[int, _Seeking] = {}
        self._looked_ns = 0
        self._warnings = LineWarnings(effects)

    def note(self, peer: Session, line: int, address: Any, now_ns: int) -> None:
        """Note from where an announcement came."""
        if peer.group is None or not _is_anywhere(peer.recovery):
            return
        announced = self._found.setdefault(peer.session, _Seeking()).announced
        known = announced.get((line, address))
        if known is not None:
            known.heard_ns = now_ns
            return
        if len(announced) >= ADDRESSES_MAX:
            for place, one in list(announced.items()):
                if now_ns - one.heard_ns > self._recent_ns:
                    del announced[place]
        if len(announced) < ADDRESSES_MAX:
            announced[line, address] = _Announced(now_ns)

    def forget(self, session: int) -> None:
        """Forget a session."""
        seeking = self._found.pop(session, None)
        if seeking is not None:
            self._end_trial(seeking)

    def is_asking(self, session: int) -> bool:
        """Whether an answer may come from another address of a session."""
        seeking = self._found.get(session)
        return seeking is not None and seeking.trial is not None

    def check(self, now_ns: int) -> None:
        """Note which sessions do not answer, and try others of their addresses when that is due."""
        asked, joined = self._effects.take_asked()
        for session, seeking in list(self._found.items()):
            peer = self._peers.get(session)
            if peer is None or peer.group is None or peer.gone:
                self.forget(session)
                continue
            reported = session in joined and peer.group.token != 0
            is_asked = session in asked or reported or peer.probe is not None
            self._note_asked(peer, seeking, is_asked, now_ns)
            if seeking.unanswered_ns is None:
                continue
            if seeking.trial is not None and now_ns >= seeking.trial[2]:
                self._note_vain(peer, seeking, seeking.trial[1], now_ns)
            silent_ns = now_ns - seeking.unanswered_ns
            if silent_ns >= ASK_NS:  # a probe is answered over the data path only
                self._confirmation.want(peer, "", now_ns)
            if seeking.trial is None and silent_ns >= SILENT_NS and now_ns >= seeking.due_ns:
                self._try_next(peer, seeking, now_ns)
        self._looked_ns = now_ns

    def _note_asked(self, peer: Session, seeking: _Seeking, is_asked: bool, now_ns: int) -> None:
        """Note since when a session does not answer, or that it does."""
        state = peer.group
        assert state is not None
        if seeking.unanswered_ns is None:
            is_answered = state.answered_ns >= self._looked_ns
            if peer.direct and is_asked and not is_answered:
                seeking.unanswered_ns = now_ns
        elif state.answered_ns >= seeking.unanswered_ns or not peer.direct:
            seeking.unanswered_ns, seeking.wait_ns, seeking.due_ns = None, SILENT_NS, 0
            self._end_trial(seeking)

    def _try_next(self, peer: Session, seeking: _Seeking, now_ns: int) -> None:
        """Connect to the next one of the addresses that are heard, if there is another one."""
        state, current = peer.group, self._sources.get(peer.session)
        assert state is not None
        heard = [
            (one.tried_ns, *place)
            for place, one in seeking.announced.items()
            if now_ns - one.heard_ns <= self._recent_ns
            and (current is None or host_of(place[1]) != host_of(current[1]))
        ]
        if not heard:
            return
        _, line, address = min(heard, key=lambda one: one[0])
        seeking.announced[line, address].tried_ns = now_ns
        seeking.due_ns = now_ns + seeking.wait_ns
        seeking.wait_ns = min(2 * seeking.wait_ns, WAIT_NS_MAX)
        place = line, address
        if state.token and peer.joined:
            self._begin_trial(peer, seeking, place, now_ns)
        elif not peer.joined or state.places.get(line) == address:
            self._use(peer, seeking, place, now_ns)
        else:
            self._note_vain(peer, seeking, place, now_ns)

    def _begin_trial(self, peer: Session, seeking: _Seeking, place: _Place, now_ns: int) -> None:
        key = self._rng.getrandbits(64)
        while key in self._sources or key in self._peers:
            key += 1
        seeking.trial = key, place, now_ns + TRIAL_NS
        self._sources[key] = place
        self._effects.connect(place[0], key, peer.recovery)
        body = control.Joined(self._settings.subscriber, self._settings.name, wants_token=True)
        self._effects.send(key, Kind.JOINED, peer.session, body)

    def _end_trial(self, seeking: _Seeking) -> None:
        if seeking.trial is not None:
            key, _, _ = seeking.trial
            seeking.trial = None
            self._sources.pop(key, None)
            self._effects.disconnect(key)

    def receive(self, peer: Session, key: int, frame: Frame, now_ns: int) -> bool:
        """Take an answer from another address of a session; False: it is of no such connection."""
        seeking, state = self._found.get(peer.session), peer.group
        if seeking is None or seeking.trial is None or seeking.trial[0] != key or state is None:
            return False
        if frame.kind != Kind.ADMITTED:
            return True
        body, place = control.read_body(frame, control.Admitted), seeking.trial[1]
        knows_us = body.token == state.token
        silent_ns = now_ns - max(peer.data_ns, seeking.unanswered_ns or now_ns)
        if not knows_us and silent_ns > UNHEARD_NS:
            knows_us = body.life == state.life  # it has forgotten us meanwhile
        if knows_us:
            self._end_trial(seeking)
            self._use(peer, seeking, place, now_ns)
        else:
            self._note_vain(peer, seeking, place, now_ns)
        return True

    def _use(self, peer: Session, seeking: _Seeking, place: _Place, now_ns: int) -> None:
        """Ask a session's publisher at another address from now on."""
        line, address = place
        former = self._sources.get(peer.session)
        at = "" if former is None else f" ({host_of(former[1])})"
        waited_s = (now_ns - (seeking.unanswered_ns or now_ns)) / 1e9
        text = (
            f"publisher {peer.name!r} has not answered at its recovery endpoint {peer.recovery}"
            f"{at} for {waited_s:.0f} s. From now on it is asked at {host_of(address)}, where its "
            f"datagrams come from, too"
        )
        self._warnings.say(line, peer.session, lambda: text, now_ns)
        self._sources[peer.session] = place
        seeking.unanswered_ns = None
        self._effects.disconnect(peer.session)
        self._effects.connect(line, peer.session, peer.recovery)
        self._connected(peer)
        if peer.joined:
            self._joiner.send_joined(peer, now_ns)
        self._joiner.send_probe(peer, line, now_ns)

    def _note_vain(self, peer: Session, seeking: _Seeking, place: _Place, now_ns: int) -> None:
        """Leave another address that did not answer as the session's publisher would."""
        self._end_trial(seeking)
        if peer.group is None or peer.group.places.get(place[0]) == place[1]:
            return  # what comes from there is taken
        text = (
            f"publisher {peer.name!r} (session {peer.session:016x}) does not answer at its "
            f"recovery endpoint {peer.recovery} any more, and announcements of the session come "
            f"from {host_of(place[1])}, where it does not answer either. What else comes from "
            f"there is dropped until it does"
        )
        self._warnings.say(place[0], peer.session, lambda: text, now_ns)


def _is_anywhere(recovery: str) -> bool:
    """Whether a recovery endpoint names no host."""
    return recovery.startswith(_WILDCARDS)
