"""Records what publishers accepted, and checks what applications get."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from recovery import Loss, LossReason, RangeSet, Rewound

VIOLATIONS_MAX = 10


def key_of(stream):
    """Return a stream's session and topic."""
    return stream.peer.session, stream.topic


def title_of(subscriber, stream):
    """Return what violations call a subscriber's stream."""
    return f"{subscriber}: {stream.topic!r} of {stream.peer.name}"


@dataclass(frozen=True, slots=True)
class Accepted:
    """A message as the application gave it to its publisher, and when."""

    value: Any
    key: str | None
    timestamp_ns: int | None
    headers: dict[str, Any] | None
    at_ns: int


class History:
    """What publishers accepted, by (session, topic), and what went wrong.

    Attributes:
        published: the messages, by stream; None for a sequence that a crash skipped.
        ended: sessions whose publisher died.
        kept: (earliest, next) of each stream when its publisher last died.
        former: what streams had before their publishers' logs were rewound.
        went_back: to which sequence, the last time.
        violations: what went wrong.

    """

    def __init__(self):
        self.went_back = {}
        self.former = {}
        self.published = {}
        self.ended = set()
        self.kept = {}
        self.violations = []

    def accept(self, session, topic, sequence, message):
        """Record a message that a publisher accepted."""
        messages = self.published.setdefault((session, topic), [])
        if sequence != len(messages):
            self.complain(f"{topic!r} got sequence {sequence} for message {len(messages)}")
        messages.append(message)

    def go_on(self, session, topic, following, acknowledged=None, *, rewound=False):
        """Record where a publisher continues after a crash; what it skips is lost.

        Args:
            session: of the stream.
            topic: of the stream.
            following: its next sequence.
            acknowledged: how many messages it may not give the sequences of to others. Default
                None: all that were accepted.
            rewound: whether its log was restored from a copy, so that it does that all the same.

        """
        messages = self.published.setdefault((session, topic), [])
        kept = len(messages) if acknowledged is None else acknowledged
        if following < kept and not rewound:
            self.complain(f"{topic!r} goes on at {following}, and {kept} were acknowledged")
        if rewound and following < len(messages):
            self.former.setdefault((session, topic), []).append(list(messages))
            self.went_back[session, topic] = following
        del messages[following:]
        messages += [None] * (following - len(messages))

    def of(self, stream):
        """Return the messages of a subscriber's stream."""
        return self.published.get(key_of(stream), [])

    def complain(self, what):
        """Record that something went wrong."""
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(what)


@dataclass(slots=True)
class Seen:
    """What the application saw of one stream; since its publisher went back, where it did.

    Attributes:
        next: the sequence after that.
        delivered, lost, reasons: how many, and for which reasons.
        gone: what was reported lost.
        conflated: how many messages newer ones of their keys were to come instead of.
        replaced: of these, the newest sequence of each key of which the newer one is yet to come.
        messages: what was delivered, by sequence, where the publisher has gone back.

    """

    next: int = -1
    delivered: int = 0
    lost: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    messages: "dict[int, Accepted | None]" = field(default_factory=dict)
    gone: RangeSet = field(default_factory=RangeSet)
    conflated: int = 0
    replaced: dict[str | None, int] = field(default_factory=dict)


class Oracle:
    """Checks what one subscriber delivers to its application.

    Args:
        name: of the subscriber.
        history: what was published.
        deadline_ns: how long it waits for repairs.
        conflate: whether only the newest message of each key is wanted.

    Attributes:
        seen: what the application saw, by (session, topic).
        rewound: how often it reported that a publisher has gone back.

    """

    def __init__(self, name, history, deadline_ns, *, conflate):
        self.conflate = conflate
        self.name = name
        self.history = history
        self.deadline_ns = deadline_ns
        self.seen = defaultdict(Seen)
        self.rewound = 0

    def take(self, stream, output, *, now_ns):
        """Look at what the application gets next."""
        if isinstance(output, Rewound):
            self._take_rewound(stream, output)
            return
        seen = self._seen(stream)
        if not isinstance(output, Loss) and output.late:
            # What was skipped comes after all: it is lost no more.
            seen.delivered += len(output)
            seen.lost -= len(output)
            seen.reasons["skipped"] -= len(output)
            if seen.reasons["skipped"] < 0:
                self._complain(stream, f"delivered {output.sequence} late, and had not skipped it")
            self._check_content(stream, output)
            return
        if isinstance(output, Loss):
            self._go_on(stream, seen, output.start, output.stop)
            seen.lost += output.count
            seen.reasons[output.reason.value] += output.count
            seen.gone.add(output.start, output.stop)
            self._check_loss(stream, output, now_ns)
        else:
            for message in output:
                self._go_on(stream, seen, message.sequence, message.sequence + 1)
                if seen.replaced.get(message.key, seen.next) < seen.next:
                    del seen.replaced[message.key]
            seen.delivered += len(output)
            self._check_content(stream, output)

    def check_ledger(self, ledger):
        """Compare a stream's ledger, as users see it, with what the application saw."""
        key = ledger.session, ledger.topic
        title = f"{self.name}: {ledger.topic!r} of {ledger.publisher}"
        if not ledger.balanced:
            self.history.complain(f"{title} has a ledger that does not balance: {ledger}")
        if key in self.history.former:
            return  # it may be one of several of that name
        seen, known = self.seen[key], len(self.history.published.get(key, ()))
        if ledger.delivered != seen.delivered:
            delivered = f"{ledger.delivered} of {seen.delivered} deliveries"
            self.history.complain(f"{title} claims {delivered}")
        if ledger.head > max(known, ledger.start):
            text = f"has head {ledger.head} where {known} were published"
            self.history.complain(f"{title} {text}")

    def _go_on(self, stream, seen, start, stop):
        """Go on with what follows; what is left out was conflated, or else it is wrong."""
        if start < seen.next or (start > seen.next and not self.conflate):
            self._complain(stream, f"went on at {start} instead of {seen.next}")
        published = self.history.of(stream)
        for sequence in range(seen.next, min(start, len(published))):
            message = published[sequence]
            seen.conflated += 1
            seen.replaced[None if message is None else message.key] = sequence
        seen.next = stop

    def _take_rewound(self, stream, rewound):
        key = key_of(stream)
        if key not in self.history.former:
            self._complain(stream, f"is said to have gone back, which it has not: {rewound}")
        self.rewound += 1
        self.seen[key] = Seen()

    def _seen(self, stream):
        seen = self.seen[stream.peer.session, stream.topic]
        if seen.next < 0 and stream.receiver.started:
            seen.next = stream.receiver.start
        return seen

    def _check_content(self, stream, batch):
        messages = self.history.of(stream)
        former = self.history.former.get(key_of(stream), [])
        for message in batch:
            sequence = message.sequence
            got = Accepted(message.value, message.key, message.timestamp_ns, message.headers, 0)
            if former:
                lives = (messages, *former)
                found = next((m for m in lives if _has(m, sequence, got)), None)
                if found is None:
                    self._complain(stream, f"delivered {sequence} with no content that it had")
                else:
                    self._seen(stream).messages[sequence] = found[sequence]
            elif sequence >= len(messages):
                self._complain(stream, f"delivered {sequence}, which was never published")
                return
            elif not _has(messages, sequence, got):
                self._complain(stream, f"delivered {sequence} with another content")

    def _check_loss(self, stream, loss, now_ns):
        reason = loss.reason
        if reason is LossReason.PUBLISHER_GONE and stream.peer.session not in self.history.ended:
            self._complain(stream, f"lost {loss} of a publisher that lives")
        if reason is LossReason.MALFORMED:
            self._complain(stream, f"lost {loss}")
        if reason in (LossReason.TIMEOUT, LossReason.BUDGET, LossReason.OVERFLOW):
            messages = self.history.of(stream)
            if loss.stop > len(messages):
                self._complain(stream, f"lost {loss}, which was never published")
            elif now_ns - _accepted_ns(messages[loss.start]) < self.deadline_ns:
                self._complain(stream, f"lost {loss} before its deadline")

    def _complain(self, stream, what):
        self.history.complain(f"{title_of(self.name, stream)} {what}")


def _has(messages, sequence, got):
    """Whether a stream has at `sequence` what was received."""
    want = messages[sequence] if sequence < len(messages) else None
    if want is None or (got.value, got.key, got.headers) != (want.value, want.key, want.headers):
        return False
    return want.timestamp_ns in (None, got.timestamp_ns)


def _accepted_ns(message):
    return 0 if message is None else message.at_ns
