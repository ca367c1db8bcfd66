"""What pushers and pullers count."""

from dataclasses import dataclass, field

from p2pmsg.stats import Stats


@dataclass(frozen=True, slots=True)
class WorkerStats(Stats):
    """One worker, as the pusher sees it."""

    name: str
    """Its name, for people."""
    in_hand: int
    """Jobs that it has."""
    acked: int
    """Deliveries that it acknowledged."""
    failed: int
    """Deliveries that it rejected, or that timed out with it."""
    connected: bool = True
    """Whether it is there now."""
    breaker: str = "closed"
    """`closed`, or `open` where it fails at what others do."""
    allowed: int = 0
    """How many jobs it may have: `prefetch`, or less while it has done few."""
    held_back: int = 0
    """Jobs taken back from it since it held them for too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PusherStats(Stats):
    """A pusher's counters; with `acknowledge="batch"` many are 0.

    At any moment `pushed + restored + retried = done + dead + in_flight`, and
    `delivered = done + failed + recalled + taken_back + held_back + in_hands`.
    """

    endpoint: str
    """Where workers connect to."""
    pushed: int
    """Jobs accepted."""
    restored: int = 0
    """Jobs that the log had of an earlier run."""
    retried: int = 0
    """Dead letters that were made jobs again."""
    duplicates: int = 0
    """Pushes that were not accepted, since their `message_id` was known."""
    done: int
    """Jobs that were acknowledged."""
    dead: int
    """Jobs that became dead letters; with `acknowledge="batch"` those at which the connection of
    their puller ended each time that they were sent."""
    in_flight: int
    """Jobs that are neither done nor dead: waiting, delayed or with a worker."""
    in_hands: int
    """Of those in flight, how many workers have."""
    delayed: int = 0
    """Jobs that wait for their delay to pass."""
    waiting_for_key: int = 0
    """Jobs that wait for an earlier one of their key."""
    delivered: int
    """Deliveries, with those of an earlier run that a worker kept. Each that has ended and did not
    lead to `done` is counted in one of the next three, or in `held_back`."""
    failed: int
    """Rejected, discarded, timed out, or lost with a worker that had nothing else: it may be what
    killed that worker."""
    recalled: int = 0
    """Taken back before they were begun."""
    taken_back: int
    """Taken back from workers that died or fell silent, and had several jobs; others get them."""
    refused: int
    """Answers to deliveries that were not the worker's, or no longer."""
    dead_letters: int = 0
    """Dead letters that are kept now."""
    dead_letters_dropped: int = 0
    """Dead letters that were dropped at the bounds: 10,000, or 64 MiB."""
    breaker: str = "closed"
    """`closed`; `open` while nothing is handed out since everything fails; `half-open`."""
    breaker_trips: int = 0
    """How often a breaker opened."""
    frames_invalid: dict[str, int] = field(default_factory=dict)
    """Frames that came in and were dropped, by reason."""
    workers: tuple[WorkerStats, ...] = ()
    """One entry a worker."""
    held_back: int = 0
    """Taken back from workers that live, and acknowledged nothing for too long (see
    `PusherConfig.job_timeout`), or lost the right to them."""
    delays_capped: int = 0
    """Rejections with a delay beyond 1 h."""
    extends_capped: int = 0
    """Extensions beyond 24 h."""
    admin_refused: int = 0
    """Requests to list, retry or purge dead letters over the wire that were refused; see
    `PusherConfig.admin`."""
    log_missing: int = 0
    """Sequences that earlier runs used, or may have used, and of which the log has nothing: it came
    back shorter, or the operating system crashed. The jobs among them that were not done are lost.
    """
    connections_refused: int = 0
    """Connections of pullers that were refused by their keys, with `security`."""
    denied: int = 0
    """Frames of those whose keys have no right to `pull`, or to `admin`, with an access file."""
    connections_revoked: int = 0
    """Connections that were ended since their keys were revoked, or are known no more."""

    @property
    def balanced(self) -> bool:
        """Whether the first equation holds."""
        given = self.pushed + self.restored + self.retried
        return given == self.done + self.dead + self.in_flight


@dataclass(frozen=True, slots=True, kw_only=True)
class PullerStats(Stats):
    """A puller's counters."""

    received: int
    """Deliveries."""
    acked: int
    """Jobs acknowledged."""
    rejected: int = 0
    """Jobs rejected, to be tried again."""
    discarded: int = 0
    """Jobs discarded: they are dead letters."""
    refused: int = 0
    """Acknowledged or rejected too late, or twice."""
    given_back: int = 0
    """Not begun, and given back for an idle worker."""
    dropped: int = 0
    """Not begun, and no longer this worker's."""
    in_hand: int
    """Jobs that this worker has now."""
    ready: int
    """Of those, not begun."""
    pushers: int
    """Pushers that took this worker on."""
    frames_invalid: dict[str, int] = field(default_factory=dict)
    """Frames that came in and were dropped, by reason."""
    unanswered: dict[str, str] = field(default_factory=dict)
    """What is at endpoints from which no pusher has ever answered, for people; updated after 5 s,
    then each minute. With `security` also why a connection was refused."""
    answering: dict[str, bool] = field(default_factory=dict)
    """By endpoint, whether a pusher there took this worker on, and answers."""
    invalid: int = 0
    """Jobs whose value did not fit the type; they are among the discarded."""
    denied: dict[str, str] = field(default_factory=dict)
    """By endpoint, what is denied there now: a pusher gives us no right to `pull`, or has none to
    `push` here."""
    lost: int = 0
    """With `acknowledge="batch"`: jobs that a pusher said it had sent, and that did not come before
    it died. What it had not sent nobody can count here."""
