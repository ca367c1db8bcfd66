"""A subscriber in the simulator: the real core, driven as the threaded shell drives it."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from random import Random
from typing import Protocol

from p2pmsg import wire
from p2pmsg.config import SubscriberConfig
from p2pmsg.message import MessageBatch
from p2pmsg.publisher.requests import matches
from p2pmsg.relay.transfer import Resumption
from p2pmsg.start import parse_start
from p2pmsg.subscriber import partial_frames
from p2pmsg.subscriber.conflation import batch_of
from p2pmsg.subscriber.core import Intake, SubscriberCore
from p2pmsg.subscriber.effects import Action, Command, Send
from p2pmsg.subscriber.policy import GapPolicy
from p2pmsg.subscriber.resume import ResumePoints
from p2pmsg.subscriber.sessions import Session, Stream
from p2pmsg.subscriber.typed import UNTYPED, InvalidValue, ValueTypes
from p2pmsg.testing.network import MS, FaultyNetwork
from p2pmsg.testing.oracle import History, Oracle
from p2pmsg.testing.simulated_cursor import SimulatedCursor
from p2pmsg.testing.simulated_group import GroupReceiving
from p2pmsg.testing.simulated_publisher import SimulatedPublisher
from p2pmsg.testing.simulated_reader import SimulatedReader
from p2pmsg.wire import Kind
from recovery import Delivery, Loss
from recovery.checks import to_ns
from recovery.nack import GAPS_MAX
from transports import MemoryReceiver, MemoryRecoveryClient

_FULL_NS = 5 * MS
_CHECK_EVERY = 8
_COMMITS_PER_S = 50.0
_FRAME_BYTES_MAX = 64 * 1024


class Place(Protocol):
    """What a subscriber connects to: a publisher or a relay."""

    name: str
    endpoint: str


class SimulatedSubscriber:
    """A subscriber and its application; made by `Simulation.add_subscriber`.

    Args:
        name: of the subscriber.
        network: carries the frames.
        history: what was published.
        publishers: whom it connects to.
        topics: what it takes. Default: all.
        start: as for `Subscriber`. Default: latest.
        config: its settings. Default: `NetworkOptions.subscriber`.
        policy: what to do about gaps. Default: wait.
        reads: whether the application reads by itself. Otherwise it does in `take`. Default True.
        cursor: of former subscribers, to go on with; see `Simulation.make_cursor`. Default: none.
        types: of the values; the application reads them in `take`, then. Default: none.

    Attributes:
        name: of the subscriber, through all its incarnations.
        core: the real core, or None while it is dead.
        oracle: watches what the application of the current incarnation gets.
        reader: the application of the current incarnation.
        crashes: how often it died.
        sources: whom it connects to, one a line; `publishers` those of them that publish.
        cursor: its durable position; None without one.
        joins: what each publisher had published when its session was joined:
            (session, topic) to (earliest kept, next). With a cursor former incarnations' count,
            too.
        joined: the sessions that were joined, as far as their publishers lived to see it.
        is_gone: whether it ended and will not return.
        whole: sessions that began after their place was known; all of them is wanted.

    """

    def __init__(
        self,
        name: str,
        network: FaultyNetwork,
        history: History,
        publishers: Sequence[Place],
        *,
        topics: Sequence[str] = (),
        start: str | int | datetime = "latest",
        config: SubscriberConfig | None = None,
        policy: GapPolicy | None = None,
        reads: bool = True,
        cursor: SimulatedCursor | None = None,
        types: ValueTypes = UNTYPED,
    ) -> None:
        self.name = name
        self.sources = list(publishers)
        self.publishers = [one for one in publishers if isinstance(one, SimulatedPublisher)]
        self.topics = list(topics)
        self.start = parse_start(start)
        self.policy = policy or GapPolicy("wait")
        self._reads, self._types = reads, types
        self._network = network
        self.config = config or network.options.subscriber
        self.core: SubscriberCore | None = None
        self.crashes = 0
        self._history = history
        self._stopped_until_ns = self._frozen_until_ns = 0
        self._hurried = False
        self._pumps = 0
        self.joins: dict[tuple[int, str], tuple[int, int]] = {}
        self.whole: set[int] = set()
        self.joined: set[int] = set()
        self.is_gone = False
        self.cursor = cursor
        places = [place.endpoint for place in self.sources]
        if cursor is not None:
            cursor.use_for(places, self.topics)
        elif network.options.cursor:
            self.cursor = SimulatedCursor(name, network, history, places, self.topics)
        self._commit_later()
        self.revive()

    def revive(self) -> None:
        """Start: where the cursor says, or as one that knows nothing of the former one."""
        if self.core is not None or self.is_gone:
            return
        network = self._network
        deadline_ns = to_ns(self.config.repair_timeout)
        if len(self.publishers) < len(self.sources):
            deadline_ns //= 2  # a relay gives up before its subscribers do
        self.oracle = Oracle(
            self.name,
            self._history,
            deadline_ns,
            conflate=self.policy.any_conflates,
            checks_content=self._reads,
        )
        recorded = set() if self.cursor is None else self.cursor.recorded
        self.joins = {key: head for key, head in self.joins.items() if key[0] in recorded}
        self.whole &= recorded
        self.joined &= recorded
        self.core = self._make_core()
        # Its choices are its own, so that they change nothing of what the network does.
        choices = Random(f"{network.options.seed} {self.name} {self.crashes}")
        self.reader = SimulatedReader(self.core, choices)
        self._clients: dict[int, MemoryRecoveryClient] = {}
        self._receivers: list[MemoryReceiver | GroupReceiving] = []
        self._wake_ns = 0
        self._reading = False
        network.note(f"{self.name} starts")
        for line, place in enumerate(self.sources):
            socket = f"{self.name}/{self.crashes}/{line}"
            if network.options.multicast:
                self._receivers.append(
                    GroupReceiving(network, socket, line, place.endpoint, self.pump)
                )
                continue
            receiver = MemoryReceiver(
                place.endpoint,
                network=network.sockets,
                queue_frames=self.config.queue_frames,
                name=socket,
            )
            for prefix in wire.topic_prefixes(self.topics or ["*"]):
                receiver.subscribe(prefix)
            receiver.subscribe(wire.control_prefix(Kind.WELCOME))
            network.receivers[socket] = self.pump
            self._receivers.append(receiver)
            receiver.connect()
        self._schedule()

    def _make_core(self) -> SubscriberCore:
        return self._new_core(None if self.cursor is None else self.cursor.open())

    def _new_core(
        self, cursor: ResumePoints | Resumption | None, relay: int | None = None
    ) -> SubscriberCore:
        core = SubscriberCore(
            topics=self.topics,
            lines=len(self.sources),
            start=self.start,
            subscriber=self._network.rng.getrandbits(64),
            name=self.name,
            config=self.config,
            policy=self.policy,
            types=self._types,
            rng=Random(self._network.rng.getrandbits(64)),
            now_ns=self._network.clock.now_ns,
            cursor=cursor,
            relay=relay,
            datagram_lines=range(len(self.sources)) if self._network.options.multicast else (),
            # Elsewhere single replies are lost, and no connection ends with them.
            counts_replies=self._network.options.bytes_per_s > 0,
        )
        if self._network.options.multicast in ("sealed", "signed"):
            core.use_seal()
        return core

    def crash(self) -> None:
        """Crash."""
        if self.core is None:
            return
        self._network.note(f"{self.name} crashes")
        self.crashes += 1
        self.core = None
        if self.cursor is not None:
            self.cursor.crash()
        for receiver in self._receivers:
            receiver.close()
        for client in self._clients.values():
            client.close()

    def leave_for_good(self) -> None:
        """Crash, never to come back."""
        self.crash()
        self.is_gone = True

    def take_forged(self, place: "SimulatedPublisher", data: bytes, *, spoofed: bool) -> None:
        """Take a datagram that a stranger sent to the group of a publisher."""
        if self.core is None:
            return
        for at, receiver in zip(self.sources, self._receivers, strict=True):
            if at is place and isinstance(receiver, GroupReceiving):
                receiver.take_forged(data, spoofed=spoofed)
        self.pump()

    def cut(self, line: int, *, recovery: bool) -> None:
        """Cut a connection of the data path, and the recovery channels too; they come back."""
        if self.core is None:
            return
        self._network.note(f"{self.name} is cut from {line}, recovery {recovery}")
        self._receivers[line].reconnect()
        if recovery:
            for session, client in self._clients.items():
                client.reconnect()
                self.core.recovery_returned(session)
            self.pump()

    def stop_reading(self, seconds: float) -> None:
        """Let the application take nothing for a while."""
        self._stopped_until_ns = self._network.clock.now_ns + to_ns(seconds)
        self._network.at(self._stopped_until_ns, self.pump)

    def stop_process(self, seconds: float) -> None:
        """Let the whole process do nothing for a while."""
        until_ns = self._network.clock.now_ns + to_ns(seconds)
        self._frozen_until_ns = max(self._frozen_until_ns, until_ns)
        self._network.at(self._frozen_until_ns, self.pump)

    @property
    def is_frozen(self) -> bool:
        """Whether the whole process stands still."""
        return self._network.clock.now_ns < self._frozen_until_ns

    def hurry(self) -> None:
        """Read as fast as frames come, from now on."""
        self._hurried = True
        self._stopped_until_ns = self._frozen_until_ns = 0
        self.pump()

    def pump(self) -> None:
        """Do one round of I/O, and let the application read."""
        core = self.core
        if core is None or self.is_frozen:
            return
        now_ns = self._network.clock.now_ns
        if self._network.options.bytes_per_s:
            self._check_bytes(core, now_ns)
        if now_ns >= core.next_deadline_ns():
            core.handle_timer(now_ns=now_ns)
        self._do_commands(core)
        while True:
            intake = core.intake(now_ns)
            if intake is Intake.HOLD:
                taken = self._take_replies(core, now_ns)
            else:
                taken = self._take_all(core, now_ns, shed=intake is Intake.SHED)
            self._do_commands(core)
            read = self._read(core, now_ns)
            if core is not self.core:
                return  # it died while it wrote its cursor
            if not (read or taken):
                break
        self._on_joins(core)
        if self.cursor is not None:
            self.cursor.record(core, hurried=self._hurried or not self._reads)
            if core is not self.core:
                return
        if core.bytes_held > self.config.receive_bytes + _FRAME_BYTES_MAX:
            self._history.complain(f"{self.name} holds {core.bytes_held} bytes")
        self._check_exit(core)
        self._pumps += 1
        if self._pumps % _CHECK_EVERY == 0:
            self.check_streams()
        self._schedule()

    def hand_over(self, stream: Stream, output: MessageBatch | Loss) -> None:
        """Give the application what comes next; a test may put something else in its place."""
        if self.cursor is not None:
            self.cursor.take(stream, output)
        self.oracle.take(stream, output, now_ns=self._network.clock.now_ns)

    @property
    def streams(self) -> list[Stream]:
        """The streams of the current incarnation."""
        return [] if self.core is None else self.core.streams

    def wants(self, topic: str) -> bool:
        """Whether it takes a topic."""
        return matches(topic, self.topics or ["*"])

    def hears(self, publisher: SimulatedPublisher) -> bool:
        """Whether the data path from a publisher works."""
        return not self._network.is_one_way(publisher.name, self.name)

    def peer_of(self, publisher: SimulatedPublisher) -> Session | None:
        """Return what is known of the publisher's current incarnation."""
        if self.core is None or publisher.session is None:
            return None
        return self.core.peers.get(publisher.session)

    def _take_all(self, core: SubscriberCore, now_ns: int, *, shed: bool = False) -> int:
        taken = self._take_replies(core, now_ns)
        for line, receiver in enumerate(self._receivers):
            if isinstance(receiver, GroupReceiving):
                taken += receiver.take(core, now_ns, shed=shed)
                continue
            while (shed or not core.is_full) and (data := receiver.receive()) is not None:
                taken += 1
                if shed or not self._read_frame(core, data, now_ns):
                    core.receive_frame(line, data, now_ns=now_ns, shed=shed)
        return taken

    def _check_bytes(self, core: SubscriberCore, now_ns: int) -> None:
        """Say where a part of a frame has come, as `Receiving` does."""
        for line in partial_frames.silent_lines(core, now_ns):
            receiver = self._receivers[line]
            if isinstance(receiver, MemoryReceiver) and receiver.is_receiving:
                partial_frames.on_line(core, line, now_ns)
        for key in partial_frames.awaited_answers(core, now_ns):
            client = self._clients.get(key)
            if client is not None and client.is_receiving:
                partial_frames.on_answer(core, key, now_ns)

    def _take_replies(self, core: SubscriberCore, now_ns: int) -> int:
        taken = 0
        for session, client in self._clients.items():
            while not core.replies_full and (reply := client.receive()) is not None:
                taken += 1
                core.receive_reply(session, reply, now_ns=now_ns)
        return taken

    def take(self, count_max: int) -> tuple[Stream, MessageBatch | Loss | InvalidValue] | None:
        """Take at most `count_max` messages of one stream, or what comes in their place.

        None: nothing is ready.
        """
        core, now_ns = self.core, self._network.clock.now_ns
        if core is None or not self.has_ready:
            return None
        taken = core.ready.take(count_max, now_ns=now_ns)
        if taken is None:
            return None
        stream, loss, batch, _, messages = taken
        output = loss or batch or batch_of(next(messages))
        shown = batch_of(output.error.item) if isinstance(output, InvalidValue) else output
        self._deliver(core, stream, shown)
        self.pump()
        return stream, output

    @property
    def has_ready(self) -> bool:
        """Whether `take` may have something to return."""
        is_held = self.cursor is not None and self.cursor.is_waiting
        return self.core is not None and bool(self.core.ready.entries) and not is_held

    def _is_reading(self, now_ns: int) -> bool:
        return self._reads and now_ns >= self._stopped_until_ns and not self._reading

    def _read_frame(self, core: SubscriberCore, data: bytes, now_ns: int) -> bool:
        """Give a frame of the only connection to an application that waits; False: it does not."""
        if len(self.sources) > 1 or not self._is_reading(now_ns):
            return False
        received = core.frames_received
        read = self.reader.read_frame(data, now_ns)
        if read is not None:
            self._deliver(core, *read)
        return core.frames_received > received

    def _deliver(self, core: SubscriberCore, stream: Stream, output: MessageBatch | Loss) -> None:
        self._network.note(f"{self.name} reads {stream.topic} {_describe(output)}")
        self.hand_over(stream, output)
        self.oracle.check_position(stream, self.reader.position(stream))
        seconds = 0.0 if self._hurried else self._network.options.read_time
        if seconds:
            self._reading = True
            self._network.after(seconds, self._read_on, core)

    def _read(self, core: SubscriberCore, now_ns: int) -> int:
        """Let the application read what is ready, if it does read now."""
        if not self._is_reading(now_ns):
            return 0
        count = 0
        if self.cursor is not None and core.ready:
            self._on_joins(core)
            self.cursor.record(core, hurried=True)
            if core is not self.core:
                return 0
        while not self._reading and (read := self.reader.read(now_ns)) is not None:
            self._deliver(core, *read)
            count += 1
        return count

    def commit(self) -> None:
        """Commit everything that the application got, durably."""
        if self.cursor is not None:
            self.cursor.commit(self.streams, all_of_it=True)

    def _commit_later(self) -> None:
        if self.cursor is not None and self._reads:
            self._network.after_chance(_COMMITS_PER_S, self._commit_some)

    def _commit_some(self) -> None:
        if self.cursor is not None and not self._hurried:
            if not self.is_frozen:
                self.cursor.commit(self.streams)
            self._commit_later()

    def _read_on(self, core: SubscriberCore) -> None:
        if core is self.core:
            self._reading = False
            self.pump()

    def _do_commands(self, core: SubscriberCore) -> None:
        for effect in core.effects():
            if not isinstance(effect, Send):
                self._do(effect)
            elif (client := self._clients.get(effect.session)) is not None:
                client.send(effect.frame)
        for receiver in self._receivers:
            if isinstance(receiver, GroupReceiving):
                receiver.flush(core)

    def _do(self, command: Command) -> None:
        what = command.what
        network = self._network
        network.note(f"{self.name} does {what} {command.prefix.hex()}")
        if what is Action.CONNECT:
            socket = f"{self.name}/{self.crashes}/{command.session:x}"
            client = self._clients[command.session] = MemoryRecoveryClient(
                command.endpoint,
                network=network.sockets,
                queue_frames=self.config.queue_frames,
                name=socket,
            )
            network.receivers[socket] = self.pump
            client.connect()
        elif what is Action.DISCONNECT:
            gone = self._clients.pop(command.session, None)
            if gone is not None:
                gone.close()
                network.receivers.pop(gone.name, None)
        elif what is Action.SUBSCRIBE:
            self._receivers[command.line].subscribe(command.prefix)
        elif what is Action.UNSUBSCRIBE:
            self._receivers[command.line].unsubscribe(command.prefix)
        elif what in (Action.RECONNECT, Action.LEAVE):  # there is no ring in the simulator
            self._receivers[command.line].reconnect()

    def _on_joins(self, core: SubscriberCore) -> None:
        """Remember where the streams stood when a session was joined."""
        for publisher in self.publishers:
            session = publisher.session
            if session is None or session in self.joined:
                continue
            peer = core.peers.get(session)
            if peer is not None and peer.joined and publisher.core is not None:
                self.joined.add(session)
                met = set() if self.cursor is None else self.cursor.met
                if peer.returning or publisher.endpoint in met:
                    self.whole.add(session)
                for topic, head in publisher.core.heads().items():
                    self.joins[session, topic] = head

    def _check_exit(self, core: SubscriberCore) -> None:
        """Check what was taken out against what the application got."""
        if wrong := self.reader.miscounted():
            self._history.complain(f"{self.name}: {wrong}")
        for stream in core.streams:
            self.oracle.check_position(stream, self.reader.position(stream))

    def check_streams(self) -> None:
        """Check the ledgers and the bounds; done now and then by itself."""
        core = self.core
        if core is None:
            return
        complain = self._history.complain
        waiting, late = Counter[int](), Counter[int]()
        for stream, output in core.ready:
            if isinstance(output, Delivery):
                waiting[id(stream)] += output.count
                late[id(stream)] += output.count * output.late
        for stream in core.streams:
            if stream.receiver.missing == 0 and stream.peer.gone:
                continue  # it changes no more; the end is checked all the same
            receiver = stream.receiver
            if len(list(receiver.missing_ranges)) > GAPS_MAX:
                complain(f"{self.name} has more gaps than GAPS_MAX")
            left = self.reader.left_of(stream)
            late_count = late[id(stream)] + receiver.late_held
            self.oracle.check_stream(stream, waiting[id(stream)] + left, late_count)

    def _schedule(self) -> None:
        core, now_ns = self.core, self._network.clock.now_ns
        if core is None:
            return
        time_ns = max(now_ns + 1, core.next_deadline_ns())
        if core.is_full:
            time_ns = min(time_ns, now_ns + _FULL_NS)
        if self._wake_ns <= now_ns or time_ns < self._wake_ns:
            self._wake_ns = time_ns
            self._network.at(time_ns, self._wake, core, time_ns)

    def _wake(self, core: SubscriberCore, time_ns: int) -> None:
        if core is self.core and time_ns == self._wake_ns:
            self._wake_ns = 0
            self.pump()


def _describe(output: MessageBatch | Loss) -> str:
    if isinstance(output, Loss):
        return f"lost {output.start} {output.stop} {output.reason.value}"
    return f"{output.sequence} {len(output)}"
