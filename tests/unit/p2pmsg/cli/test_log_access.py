"""Choosing and reading a part of a log, over a log in memory that may have holes."""

from types import SimpleNamespace
from typing import Any

import pytest

from p2pmsg.cli.arguments import position
from p2pmsg.cli.log import begin_ns, count_gone, render, summarize
from p2pmsg.cli.log_access import Reading, choose, matches
from p2pmsg.errors import LogError
from p2pmsg.publisher.batch import Batch
from p2pmsg.wire import stream_prefix

S = 10**9


class MemoryLog:
    """What the commands use of a log; frames can be taken out of it, or be spoilt."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.skipped: list[tuple[int, int]] = []
        self.corrupt: dict[int, Any] = {}

    def append(
        self, topic: str, start: int, times: list[int], *, session: int = 1, appended_ns: int = 0
    ) -> None:
        batch = Batch(stream_prefix(topic, session), start, times[0], 0, 2**16, bytearray())
        for index, time_ns in enumerate(times):
            batch.buffer += bytes((index,))
            batch.add_columns(None, time_ns, None)
            batch.end, batch.next = len(batch.buffer), batch.next + 1
        stop = start + len(times)
        data = bytes(batch.seal()[0])
        self.kept.append(
            SimpleNamespace(
                session=session, topic=topic, start=start, stop=stop, frame=data,
                timestamp_ns_max=max(times), appended_ns=appended_ns,
            )
        )  # fmt: skip

    def of(self, session: int, topic: str) -> list[Any]:
        return [kept for kept in self.kept if (kept.session, kept.topic) == (session, topic)]

    def streams(self) -> list[Any]:
        found = []
        for session, topic in dict.fromkeys((kept.session, kept.topic) for kept in self.kept):
            of = self.of(session, topic)
            times = [kept.timestamp_ns_max for kept in of]
            found.append(
                SimpleNamespace(
                    session=session, topic=topic, earliest=of[0].start, next=of[-1].stop,
                    timestamp_ns_min=min(times), timestamp_ns_max=max(times), frames=len(of),
                    messages=sum(kept.stop - kept.start for kept in of),
                    bytes=sum(len(kept.frame) for kept in of),
                    appended_ns_first=of[0].appended_ns, appended_ns_last=of[-1].appended_ns,
                )
            )  # fmt: skip
        return found

    def frames(self, session: int, topic: str, start: int, stop: int, bytes_max: int) -> list[Any]:
        found = [k for k in self.of(session, topic) if k.stop > start and k.start < stop]
        return found[:2]

    def first_at_or_after(self, session: int, topic: str, timestamp_ns: int) -> Any:
        found = [k for k in self.of(session, topic) if k.timestamp_ns_max >= timestamp_ns]
        return found[0] if found else None

    def records(self, *, parts: Any = None) -> Any:
        return iter(self.kept)

    def skips(self, session: int, topic: str) -> list[tuple[int, int]]:
        return self.skipped


def arguments_of(*topics, start=None, stop=None, session=None):
    bounds = {"start": start and position(start), "stop": stop and position(stop)}
    return SimpleNamespace(topics=list(topics), session=session, **bounds)


@pytest.fixture
def log():
    made = MemoryLog()
    made.append("a", 10, [100 * S, 101 * S, 102 * S], appended_ns=1 * S)
    made.append("b", 0, [100 * S], appended_ns=2 * S)
    made.append("a", 13, [103 * S], appended_ns=3 * S)
    made.append("a", 14, [104 * S, 105 * S], appended_ns=4 * S)
    made.append("b", 1, [105 * S], session=2, appended_ns=5 * S)
    return made


def ranges(parts):
    return {key: (part.start, part.stop) for key, part in parts.items()}


def read(log, *topics, with_times=False, **rest):
    said = []
    reading = Reading(log, choose(log, arguments_of(*topics, **rest)), said.append)
    found = [
        (message.topic, message.sequence)
        for piece in reading.pieces(with_times=with_times)
        for message in piece.batch
    ]
    assert reading.done == reading.total
    assert reading.is_whole == (not reading.missing and not log.corrupt)
    return found, said, reading.missing


def test_without_arguments_all_is_chosen(log):
    assert ranges(choose(log, arguments_of())) == {
        (1, "a"): (10, 16), (1, "b"): (0, 1), (2, "b"): (1, 2),
    }  # fmt: skip


def test_topics_prefixes_and_sessions_choose_streams(log):
    assert set(ranges(choose(log, arguments_of("a")))) == {(1, "a")}
    assert set(ranges(choose(log, arguments_of("b*", session=f"{2:016x}")))) == {(2, "b")}
    assert matches("trades.btc", ["quotes", "trades.*"])
    assert not matches("trades", ["trades.*"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (arguments_of("c"), "no stream 'c'"),
        (arguments_of("a", "c*"), "no stream 'c\\*'"),
        (arguments_of(session="00000000000000ff"), "no session 00000000000000ff"),
        (arguments_of(session="c3"), "no session that begins with c3"),
        (arguments_of(session="00"), "2 sessions begin with 00: 0+1, 0+2"),
        (arguments_of("a", session=f"{2:016x}"), "no stream 'a'"),
    ],
)
def test_what_is_not_there_is_reported(log, arguments, says):
    with pytest.raises(LogError, match=says):
        choose(log, arguments)


PLACES = {
    "sequences": ("12", "14", (12, 14)),
    "beyond both ends": ("0", "99", (10, 16)),
    "a time within a frame": ("1970-01-01T00:01:41Z", None, (11, 16)),
    "between two messages": ("1970-01-01T00:01:40.5Z", "1970-01-01T00:01:43.5Z", (11, 14)),
    "the times of messages": ("1970-01-01T00:01:42Z", "1970-01-01T00:01:45Z", (12, 15)),
    "before the first": ("1970-01-01T00:00:00Z", "1970-01-01T00:01:41Z", (10, 11)),
    "to after the last": ("15", "1970-01-01T01:00:00Z", (15, 16)),
    "a sequence and a time": ("11", "1970-01-01T00:01:43Z", (11, 13)),
}


@pytest.mark.parametrize(("start", "stop", "expected"), PLACES.values(), ids=PLACES)
def test_a_range_is_named_by_sequences_or_times(log, start, stop, expected):
    assert ranges(choose(log, arguments_of("a", start=start, stop=stop))) == {(1, "a"): expected}


NOTHING = {
    "from after the last": ("16", None),
    "from a time after the last": ("1970-01-01T01:00:00Z", None),
    "to before the first": (None, "10"),
    "to a time before the first": (None, "1970-01-01T00:00:00Z"),
    "the wrong way round": ("14", "12"),
}


@pytest.mark.parametrize(("start", "stop"), NOTHING.values(), ids=NOTHING)
def test_a_range_may_be_empty(log, start, stop):
    assert choose(log, arguments_of("a", start=start, stop=stop)) == {}
    assert read(log, "a", start=start, stop=stop) == ([], [], 0)


def test_several_streams_come_as_they_were_appended(log):
    found, said, _ = read(log)

    assert found == [
        ("a", 10), ("a", 11), ("a", 12), ("b", 0), ("a", 13), ("a", 14), ("a", 15), ("b", 1),
    ]  # fmt: skip
    assert said == []


@pytest.mark.parametrize("with_times", [False, True])
def test_frames_are_cut_at_both_ends(log, with_times):
    found, said, missing = read(log, "a", start="11", stop="15", with_times=with_times)

    assert found == [("a", sequence) for sequence in range(11, 15)]
    assert (said, missing) == ([], 0)


def test_replaying_knows_when_a_frame_was_appended(log):
    reading = Reading(log, choose(log, arguments_of("a")), print)

    assert [p.appended_ns for p in reading.pieces(with_times=True)] == [1 * S, 3 * S, 4 * S]


@pytest.mark.parametrize("with_times", [False, True])
def test_a_hole_is_reported_with_its_range(log, with_times):
    del log.kept[2]

    found, said, missing = read(log, "a", with_times=with_times)

    assert [sequence for _, sequence in found] == [10, 11, 12, 14, 15]
    assert said == ["[13, 14) of 'a' (session 0000000000000001) is not in the log"]
    assert missing == 1


@pytest.mark.parametrize("with_times", [False, True])
def test_what_a_crash_skipped_is_reported_and_not_missing(log, with_times):
    del log.kept[2]
    log.skipped = [(13, 14)]

    _, said, missing = read(log, "a", with_times=with_times)

    assert said == ["[13, 14) of 'a' (session 0000000000000001) was skipped after a crash"]
    assert missing == 0


def test_a_missing_end_is_reported(log):
    reading = Reading(log, choose(log, arguments_of("a")), lambda text: said.append(text))
    said: list[str] = []
    del log.kept[3]

    assert sum(len(piece.batch) for piece in reading.pieces()) == 4
    assert said == ["[14, 16) of 'a' (session 0000000000000001) is not in the log"]


def test_a_frame_that_is_malformed_is_reported_and_missing(log):
    log.kept[2].frame = log.kept[2].frame[:-4] + b"\xff\xff\xff\xff"

    found, said, missing = read(log, "a")

    assert [sequence for _, sequence in found] == [10, 11, 12, 14, 15]
    assert said[0] == "the frame at 13 of 'a' is malformed: body"
    assert missing == 1


def test_what_is_damaged_is_reported(log):
    wrong = "the frame's checksum is wrong"
    log.corrupt[0] = SimpleNamespace(path="5.log", offset=77, what=wrong)

    found, said, missing = read(log, "b*")

    assert (len(found), missing) == (2, 0)
    assert said == ["5.log:77: the frame's checksum is wrong"]


def begins(log):
    return {(s.session, s.topic): begin_ns(log, s) for s in log.streams()}


def gone(log, cut=None):
    return count_gone(log, log.streams(), cut or {})


def test_what_is_not_there_is_counted_by_why(log):
    del log.kept[2]
    assert gone(log) == {(1, "a"): (0, 1), (1, "b"): (0, 0), (2, "b"): (0, 0)}
    log.append("a", 2_000_000, [106 * S])
    log.skipped = [(16, 1_999_990)]
    cut = {(1, "a"): range(2_000_001, 2_000_021), (3, "c"): range(5)}

    assert gone(log, cut)[1, "a"] == (1_999_974, 1 + 10 + 20)
    assert gone(log, cut)[3, "c"] == (0, 5)
    result = summarize(log.streams(), begins(log), gone(log, cut), 1000, 10_000)
    assert [row["messages"] for row in result["streams"]] == [6, 1, 1]
    assert (result["messages"], result["streams"][0]["skipped"]) == (8, 1_999_974)


@pytest.mark.parametrize("start", [None, "15", "17"])
def test_what_was_cut_from_the_end_is_missing(log, start):
    cut, said = {(1, "a"): range(16, 20), (3, "c"): range(5)}, []
    parts = choose(log, arguments_of("a", "c", start=start), cut)
    reading = Reading(log, parts, said.append, [SimpleNamespace(path="x", offset=1, what="cut")])

    list(reading.pieces())
    first = max(16, int(start or 0))
    assert said[0] == f"[{first}, 20) of 'a' (session 0000000000000001) is not in the log"
    assert said[-1] == "x:1: cut"
    assert reading.missing == 20 - first + (0 if start else 5)
    assert not reading.is_whole


def test_a_stream_begins_with_its_first_message(log):
    log.kept[3].frame = b"spoilt"

    assert begins(log) == {(1, "a"): 100 * S, (1, "b"): 100 * S, (2, "b"): 105 * S}


def test_the_rates_are_those_at_which_it_was_written(log):
    result = summarize(log.streams(), begins(log), gone(log), 1000, 10_000)

    assert [row["messages"] for row in result["streams"]] == [6, 1, 1]
    assert [row["messages_s"] for row in result["streams"]] == [2.0, None, None]
    assert (result["messages"], result["messages_s"]) == (8, 2.0)
    assert (result["bytes_s"], result["window_s"]) == (250.0, 40.0)


def test_the_list_says_how_long_a_window_the_disk_holds(log):
    result = summarize(log.streams(), begins(log), gone(log), 1000, 10_000)

    *table, total, window = render(log.streams(), result, is_stated=True).splitlines()
    assert len(table) == 4
    assert table[1].split()[:7] == [
        "a", "0000000000000001", "1970-01-01T00:01:40.000000Z", "1970-01-01T00:01:45.000000Z",
        "10", "16", "6",
    ]  # fmt: skip
    assert total == "8 messages in 1 kB, written at 250 B a second"
    assert window == "10 kB hold 40 s at this rate"


def test_a_log_of_one_frame_or_none_has_no_rate(log):
    one = [log.streams()[1]]
    result = summarize(one, begins(log), gone(log), 100, 10_000)
    assert render(one, result, is_stated=False).splitlines()[-1] == (
        "1 messages in 100 B; too short to measure a rate"
    )

    nothing = summarize([], {}, {}, 100, 10_000)
    assert nothing["window_s"] is None
    assert render([], nothing, is_stated=False) == "the log has no stream"
