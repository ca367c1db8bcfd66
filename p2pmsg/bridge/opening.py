"""Opens the two ends of a bridge."""

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from p2pmsg import Publisher, Puller, Pusher, Requester, Subscriber
from p2pmsg.bridge.config import (
    ANSWER_S,
    COMMIT_INTERVAL_S,
    IN_FLIGHT_MAX,
    PREFETCH,
    SURVEY_S,
    BridgeConfig,
)
from p2pmsg.bridge.connection import Connection
from p2pmsg.bridge.endpoint import KINDS, OurEnd, PlainEnd, parse_end
from p2pmsg.bridge.ends import (
    QueueSource,
    QueueTarget,
    Source,
    StreamSource,
    StreamTarget,
    Target,
)
from p2pmsg.bridge.plain_ends import FanOutTarget, PlainSource, PlainTarget
from p2pmsg.bridge.request_ends import (
    AskingTarget,
    RepSource,
    RequesterTarget,
    ResponderSource,
)
from p2pmsg.bridge.sequences import Sequences
from p2pmsg.bridge.shapes import Reader, Writer
from p2pmsg.errors import ConfigError
from p2pmsg.plain import PlainSocket, sp_socket, zmq_socket
from p2pmsg.toolkit import check, check_topic

if TYPE_CHECKING:
    from pathlib import Path

    from p2pmsg.config import CursorConfig
    from p2pmsg.log import LogConfig
    from p2pmsg.plain import SpPlainSocket
    from p2pmsg.security import Security


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What `Bridge` was given; see there."""

    source: str
    target: str
    topic: str
    topic_at: str | None
    topics: list[str] | None
    codec: str
    sequence_at: str | None
    log: "LogConfig | str | Path | None"
    cursor: "CursorConfig | str | None"
    start: "str | int | datetime | None"
    name: str | None
    config: BridgeConfig
    security: "Security | None" = None


@dataclass(slots=True)
class Ends:
    """The two ends, open.

    Attributes:
        source, target: the ends.
        source_name, target_name: where they really are.
        endpoint: where ours is bound; "" where it connects.
        connections: of the plain sockets.
        reader, sequences, plain: what has counters, where the source is a plain socket.

    """

    source: Source = field(init=False)
    target: Target = field(init=False)
    source_name: str = ""
    target_name: str = ""
    endpoint: str = ""
    connections: list[Connection] = field(default_factory=list)
    reader: Reader | None = None
    sequences: Sequences | None = None
    plain: PlainSource | None = None


def open_ends(wishes: Wishes) -> Ends:
    """Open both ends, the target first; raises what `Bridge` says. All is open, or nothing."""
    check_topic(wishes.topic)
    source, target = parse_end(wishes.source), parse_end(wishes.target)
    source, target = _with_role(source, target), _with_role(target, source)
    _check(wishes, source, target)
    ends = Ends(source_name=wishes.source, target_name=wishes.target)
    ends.target = _open_target(wishes, source, target, ends)
    try:
        ends.source = _open_source(wishes, source, ends)
    except BaseException:
        ends.target.close(0.0)
        raise
    return ends


def _with_role(end: PlainEnd | OurEnd, other: PlainEnd | OurEnd) -> PlainEnd | OurEnd:
    """Say what an end of ours is, by the other one."""
    if isinstance(end, OurEnd) and not end.role and isinstance(other, PlainEnd):
        return replace(end, role=other.opposite)
    return end


def _check(wishes: Wishes, source: PlainEnd | OurEnd, target: PlainEnd | OurEnd) -> None:
    for end, text, side in ((source, wishes.source, "source"), (target, wishes.target, "target")):
        if isinstance(end, PlainEnd) and end.curve and wishes.security is None:
            raise ConfigError("security", f"given where the {side} has keys", text)
        if isinstance(end, PlainEnd) and KINDS[end.protocol][end.kind] != side:
            limit = f"a socket that messages can {'come from' if side == 'source' else 'go to'}"
            raise ConfigError(side, limit, text)
    if isinstance(source, OurEnd) and isinstance(target, OurEnd):
        limit = "a plain socket, since the source is p2pmsg's; between two of those a Relay stands"
        raise ConfigError("target", limit, wishes.target)
    roles = [end.opposite if isinstance(end, PlainEnd) else end.role for end in (source, target)]
    if (roles[0] == "requests") != (roles[1] == "requests"):
        raise ConfigError("target", "requests, as the source is, or none of both", wishes.target)
    if roles[0] == "requests" and isinstance(source, PlainEnd) and isinstance(target, PlainEnd):
        raise ConfigError("target", "p2pmsg's, where requests come from", wishes.target)
    is_stream = isinstance(source, OurEnd) and source.role == "stream"
    is_sub = isinstance(source, PlainEnd) and source.kind == "sub"
    has_topics = is_stream or is_sub or roles[0] == "requests"
    ok = wishes.topics is None or has_topics
    check("topics", wishes.topics, ok, "given only with streams, sub sockets and requests")
    has_none = isinstance(source, PlainEnd) and _topic_at(wishes, source) == "none"
    ok = wishes.topics is None or "*" in wishes.topics or not has_none
    check("topics", wishes.topics, ok, 'None where messages have no topic (topic_at="none")')
    ok = wishes.log is None or (isinstance(target, OurEnd) and target.role != "requests")
    check("log", wishes.log, ok, "given only where the target is p2pmsg's: a stream or a queue")
    check("cursor", wishes.cursor, wishes.cursor is None or is_stream, _STREAM_ONLY)
    check("start", wishes.start, wishes.start is None or is_stream, _STREAM_ONLY)
    ok = wishes.sequence_at is None or isinstance(source, PlainEnd)
    check("sequence_at", wishes.sequence_at, ok, "given only where the source is a plain socket")


_STREAM_ONLY = "given only where the source is a stream of p2pmsg"


def _topic_at(wishes: Wishes, end: PlainEnd) -> str:
    usual = "part" if end.protocol == "zmq" else "prefix"
    place = wishes.topic_at or (usual if end.fans_out else "none")
    ok = place != "part" or end.protocol == "zmq"
    check("topic_at", place, ok, "prefix or none: messages of nanomsg and nng have one part")
    return place


def _plain_socket(end: PlainEnd, wishes: Wishes) -> PlainSocket:
    config = wishes.config
    if end.protocol == "sp":
        return sp_socket(
            end.kind, end.endpoint, binds=end.binds, queue_messages=config.queue_messages,
            message_bytes_max=config.part_bytes_max, survey_ms=round(1000 * SURVEY_S),
        )  # fmt: skip
    return zmq_socket(
        end.kind, end.endpoint, binds=end.binds, queue_messages=config.queue_messages,
        message_bytes_max=config.part_bytes_max, is_keyed=end.curve, security=wishes.security,
    )  # fmt: skip


def _open_target(
    wishes: Wishes, source: PlainEnd | OurEnd, end: PlainEnd | OurEnd, ends: Ends
) -> Target:
    config = wishes.config
    if isinstance(end, PlainEnd):
        one_part = end.protocol == "sp"
        place = _topic_at(wishes, end)
        writer = Writer(place, wishes.codec, one_part=one_part)
        socket = _plain_socket(end, wishes)
        socket.open()
        name = ends.target_name = end.name_at(socket.endpoint)
        ends.connections.append(Connection(socket, name, end.endpoint))
        if end.kind in ("req", "surveyor"):
            reader = Reader(wishes.topic, "none", None, wishes.codec)
            is_survey = end.kind == "surveyor"
            timeout = SURVEY_S if is_survey else ANSWER_S
            return AskingTarget(
                cast("SpPlainSocket", socket), writer, reader, timeout, is_survey=is_survey
            )
        if end.kind == "pub":
            return FanOutTarget(socket, name, writer, config.stall_timeout)
        return PlainTarget(socket, name, writer)
    if end.role == "requests":
        return RequesterTarget(Requester(end.endpoint, security=wishes.security), ANSWER_S)
    if end.role == "queue":
        log: Any = wishes.log
        pusher = Pusher(
            end.endpoint, log=log, name=wishes.name, in_flight_max=IN_FLIGHT_MAX,
            security=wishes.security,
        )  # fmt: skip
        ends.endpoint = ends.target_name = pusher.endpoint
        plain = isinstance(source, PlainEnd)
        with_topic = plain and _topic_at(wishes, source) != "none"  # type: ignore[arg-type]
        return QueueTarget(pusher, with_topic=with_topic, has_log=log is not None)
    publisher = Publisher(end.endpoint, name=wishes.name, log=wishes.log, security=wishes.security)
    ends.endpoint = ends.target_name = publisher.endpoint
    return StreamTarget(publisher)


def _open_source(wishes: Wishes, end: PlainEnd | OurEnd, ends: Ends) -> Source:
    config = wishes.config
    if isinstance(end, PlainEnd):
        place = _topic_at(wishes, end)
        reader = Reader(wishes.topic, place, wishes.topics, wishes.codec)
        sequences = None
        if wishes.sequence_at is not None:
            sequences = Sequences(wishes.sequence_at, wishes.codec)
        ok = not (config.single_parts and place == "part")
        check("single_parts", config.single_parts, ok, 'False with topic_at="part"')
        socket = _plain_socket(end, wishes)
        socket.open(reader.prefixes() if end.kind == "sub" else ())
        name = ends.source_name = end.name_at(socket.endpoint)
        ends.connections.append(Connection(socket, name, end.endpoint))
        ends.reader, ends.sequences = reader, sequences
        if end.kind in ("rep", "respondent"):
            writer = Writer("none", wishes.codec, one_part=True)
            return RepSource(cast("SpPlainSocket", socket), reader, writer)
        ends.plain = PlainSource(
            socket, name, reader, sequences, queue_messages=config.queue_messages,
            single_parts=config.single_parts,
        )  # fmt: skip
        return ends.plain
    if end.role == "requests":
        topics = wishes.topics or [wishes.topic]
        responding = ResponderSource(end.endpoint, topics, ANSWER_S, wishes.security)
        ends.endpoint = ends.source_name = responding.responder.endpoint
        return responding
    if end.role == "queue":
        puller = Puller(end.endpoint, name=wishes.name, prefetch=PREFETCH, security=wishes.security)
        return QueueSource(puller)
    subscriber = Subscriber(
        end.endpoint, topics=wishes.topics, name=wishes.name or "bridge", cursor=wishes.cursor,
        start="latest" if wishes.start is None else wishes.start, security=wishes.security,
    )  # fmt: skip
    return StreamSource(subscriber, None if wishes.cursor is None else COMMIT_INTERVAL_S)
