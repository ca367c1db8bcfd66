"""A MoldUDP64 publisher's state machine: messages and requests in, packets out. No I/O."""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from p2pmsg.errors import LogFailedError
from p2pmsg.mold import codec
from p2pmsg.wire import FrameError
from recovery import HeartbeatSchedule, ReplayBuffer, TokenBucket

if TYPE_CHECKING:
    from p2pmsg.mold.log import MoldLog

_MS = 1_000_000
_STREAM = "mold"
_ASKED_MAX = 4096
"""Requests that wait; who is not answered asks again."""
HOST_BYTES_S, HOST_BURST_BYTES = 16 * 2**20, 4 * 2**20
"""Answers to one host. A request is 20 bytes and its sender's address may be forged: the host that
it names gets no more than this. A receiver that is short of it asks again."""
ALL_BYTES_S, ALL_BURST_BYTES = 64 * 2**20, 16 * 2**20
"""Answers to all hosts together."""
_HOSTS_MAX = 4096
_HEARTBEAT_S = 0.02
END_REPEAT_NS = 100 * _MS
_Made = tuple[int, int, bytes]
"""Sequence, count, packet."""
History = Callable[[int, int], Sequence[bytes]]
"""Gives the messages [start, stop) by their Mold sequences, or the first of them; or none."""


@dataclass(slots=True)
class Answer:
    """The answer to a request, with the messages that are found for it.

    Attributes:
        address, start, stop: who asked, and for what.
        messages: the first of them that are kept; none where they are still to be looked up.

    """

    address: Any
    start: int
    stop: int
    messages: list[bytes] = field(default_factory=list)


class MoldPublisherCore:
    """Numbers, keeps and repeats the messages of one session.

    Attributes:
        outbox: packets for the group, oldest first.
        unsynced: packets that go there once they are on the disk (`fsync="always"`).
        replay: the packets that were sent.
        invalid: requests that were dropped, by reason.
        requests, messages_repaired: requests taken, and messages sent again.
        unanswered: messages asked for that nothing keeps.
        throttled: requests not answered, since the host they name, or all, had had enough.

    """

    def __init__(
        self,
        *,
        session: bytes,
        packet_bytes: int,
        replay_bytes: int = 64 * 2**20,
        history: History | None,
        now_ns: int,
        log: "MoldLog | None" = None,
    ) -> None:
        self.session = session
        self.following = 1 if log is None else log.following
        self.outbox: deque[bytes] = deque()
        self.unsynced: deque[_Made] = deque()
        self.replay = ReplayBuffer(replay_bytes)
        self.invalid: Counter[str] = Counter()
        self.requests = self.messages_repaired = self.unanswered = self.throttled = 0
        self._budget = TokenBucket(ALL_BYTES_S, ALL_BURST_BYTES)
        self._hosts: OrderedDict[str, TokenBucket] = OrderedDict()
        self.ended = False
        self._packet_bytes = packet_bytes
        self._history = history
        self._log = log
        self._asked: dict[tuple[Any, int], int] = {}  # by address and start, the stop
        self._heartbeat = HeartbeatSchedule(now_ns=now_ns, interval_min=_HEARTBEAT_S)
        self._end_due_ns = 0

    def publish(
        self, messages: Iterable[bytes], *, now_ns: int
    ) -> tuple[int, int, LogFailedError | None]:
        """Take messages; returns the first and the last one's sequence, and why no further ones."""
        first = self.following
        failure: LogFailedError | None = None
        for packet in codec.packets(self.session, first, messages, self._packet_bytes):
            sequence, count, data = packet
            try:
                if self._log is not None:
                    self._log.append(sequence, data)
            except LogFailedError as error:
                failure = error
                break
            if self._log is not None and self._log.syncs_first:
                self.unsynced.append(packet)
            else:
                self._keep(packet, now_ns)
            self.following = sequence + count
        self._heartbeat.data_sent(now_ns=now_ns)
        return first, self.following - 1, failure

    def _keep(self, packet: _Made, now_ns: int) -> None:
        sequence, count, data = packet
        self.outbox.append(data)
        self.replay.append(_STREAM, sequence, count, data, now_ns=now_ns, timestamp_ns_max=0)

    @property
    def head(self) -> int:
        """The sequence after the last message that anybody may get to know."""
        return self.unsynced[0][0] if self.unsynced else self.following

    def on_synced(self, *, now_ns: int) -> None:
        """Let go what is on the disk; where it did not get there, nobody has its sequences."""
        if self.unsynced and self._log is not None and self._log.failure is not None:
            self.following = self.head
            self.unsynced.clear()
        while self.unsynced:
            self._keep(self.unsynced[0], now_ns)
            self.unsynced.popleft()

    def resync(self) -> None:
        """Go on after what an exception left in the outbox, the replay buffer, or the log alone.

        No caller got its sequences, and receivers may have it, or ask for it.
        """
        known = [self.following, self.replay.next(_STREAM)]
        self.unsynced.clear()  # they are in the log, if nowhere else
        if self._log is not None:
            known.append(self._log.following)
        if self.outbox:
            packet = codec.read_packet(self.outbox[-1])
            known.append(packet.sequence + len(packet.messages))
        self.following = max(known)

    def end_log(self) -> None:
        """Answer no requests from the log any more: it is closed."""
        self._log = None

    def end(self, *, now_ns: int) -> None:
        """Say from now on that the session is over."""
        self.ended = True
        self._end_due_ns = now_ns

    def handle_timer(self, *, now_ns: int) -> None:
        """Say where the session stands, when it is time to."""
        if self.ended:
            if now_ns >= self._end_due_ns:
                self._end_due_ns = now_ns + END_REPEAT_NS
                self.outbox.append(codec.end_of_session(self.session, self.head))
        elif self._heartbeat.due(now_ns=now_ns):
            self._heartbeat.sent(now_ns=now_ns)
            self.outbox.append(codec.heartbeat(self.session, self.head))

    def next_deadline_ns(self) -> int:
        """Return when `handle_timer` has something to do."""
        return self._end_due_ns if self.ended else self._heartbeat.next_deadline_ns()

    @property
    def has_requests(self) -> bool:
        """Whether there is something to answer."""
        return bool(self._asked)

    def receive_request(self, data: bytes, address: Any, *, now_ns: int) -> None:
        """Take a request; what is malformed is counted."""
        try:
            session, start, count = codec.read_request(data)
            if session != self.session:
                raise FrameError("session")
        except FrameError as error:
            self.invalid[str(error)] += 1
            return
        self.requests += 1
        stop = min(start + count, self.head)
        if start >= stop:
            return
        if not self._may_answer(str(address[0]), now_ns):
            self.throttled += 1
            return
        if len(self._asked) < _ASKED_MAX:
            self._asked[address, start] = stop

    def next_answer(self) -> Answer | None:
        """Return what is to be answered next, or None; then call `packet_of` or `refuse`.

        Where it has no messages, `read_log` and `ask_history` come first: outside of the section,
        since they may take their time. They change the answer alone.
        """
        while self._asked:
            address, start = key = next(iter(self._asked))
            answer = Answer(address, start, self._asked.pop(key))
            answer.messages = self._buffered(start, answer.stop)
            if answer.messages or self._log is not None or self._history is not None:
                return answer
            self.refuse(answer)
        return None

    def read_log(self, answer: Answer) -> None:
        """Find messages in the log, which is not to be closed meanwhile."""
        if self._log is not None:
            answer.messages = list(self._log.history(answer.start, answer.stop))

    def ask_history(self, answer: Answer) -> None:
        """Find messages in the user's store, where there are none yet."""
        if not answer.messages and self._history is not None:
            start, stop = answer.start, answer.stop
            answer.messages = list(self._history(start, stop))[: stop - start]

    def packet_of(self, answer: Answer) -> bytes:
        """Return the packet to send.

        It is one packet; who wanted more asks again, as the specification has it.
        """
        made = codec.packets(self.session, answer.start, answer.messages, self._packet_bytes)
        _, count, data = made[0]
        self.messages_repaired += count
        return data

    def refuse(self, answer: Answer) -> None:
        """Count what nothing keeps."""
        self.unanswered += answer.stop - answer.start

    def _may_answer(self, host: str, now_ns: int) -> bool:
        """Take an answer out of a host's budget, if it has one left."""
        budget = self._hosts.get(host)
        if budget is None:
            if len(self._hosts) >= _HOSTS_MAX:
                self._hosts.popitem(last=False)
            budget = self._hosts[host] = TokenBucket(HOST_BYTES_S, HOST_BURST_BYTES)
        self._hosts.move_to_end(host)
        size = self._packet_bytes
        if budget.available(now_ns) < 1 or not self._budget.try_take(size, now_ns):
            return False
        budget.take(size, now_ns)
        return True

    def _buffered(self, start: int, stop: int) -> list[bytes]:
        """Return the first messages of a range that are kept, as many as a packet may have."""
        messages: list[bytes] = []
        at = start
        while sum(map(len, messages)) < self._packet_bytes:
            kept = self.replay.first(_STREAM, at, stop)
            if kept is None or kept.start > at:
                break
            messages += codec.read_packet(kept.frame).messages[at - kept.start : stop - kept.start]
            at = start + len(messages)
        return messages
