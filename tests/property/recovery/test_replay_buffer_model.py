from hypothesis import given, settings
from hypothesis import strategies as st

from recovery import Kept, PartedFrame, ReplayBuffer
from tests.kept import kept_frames

STREAMS = st.sampled_from(["a", "b", "c"])
APPENDS = st.lists(
    st.tuples(
        STREAMS, st.integers(0, 2), st.integers(1, 4), st.integers(0, 30), st.integers(0, 50)
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(
    APPENDS,
    st.integers(0, 120),
    st.integers(1, 12),
    st.one_of(st.none(), st.integers(1, 20)),
    st.integers(0, 100),
    st.integers(0, 20),
    st.integers(0, 50),
    st.integers(1, 3),
)
def test_a_replay_buffer_is_a_list_that_is_cut_at_its_front(
    appends, bytes_max, frames_max, age_ns, start, length, timestamp, streams_max
):
    age = None if age_ns is None else age_ns / 1e9
    buffer = ReplayBuffer(bytes_max, frames_max=frames_max, age_max=age, streams_max=streams_max)
    model: list[tuple[int, str, Kept]] = []
    heads: dict[str, int] = {}
    appended_messages = 0
    for now_ns, (stream, skipped, count, size, timestamp_ns) in enumerate(appends):
        first = heads.get(stream, 0) + skipped
        frame = bytes([now_ns]) * size
        appended_messages += count
        parts = PartedFrame((frame[:1], frame[1:]), size)
        buffer.append(
            stream, first, count, parts if size % 2 else frame,
            now_ns=now_ns, timestamp_ns_max=timestamp_ns,
        )  # fmt: skip
        if stream in heads or len(heads) < streams_max:
            heads[stream] = first + count
            if size <= bytes_max:
                model.append((now_ns, stream, Kept(first, first + count, frame, timestamp_ns)))
        while sum(len(row[2].frame) for row in model) > bytes_max or len(model) > frames_max:
            del model[0]
        buffer.expire(now_ns=now_ns)
        model = [row for row in model if age_ns is None or row[0] + age_ns > now_ns]
        assert buffer.bytes_held == sum(len(row[2].frame) for row in model) <= bytes_max
        assert len(buffer._order) == len(model) <= frames_max
        held = sum(row[2].stop - row[2].start for row in model)
        assert buffer.messages_evicted == appended_messages - held
        oldest = None if age_ns is None or not model else model[0][0] + age_ns
        assert buffer.next_deadline_ns() == oldest
    for stream in "abc":
        kept = [row[2] for row in model if row[1] == stream]
        assert buffer.next(stream) == heads.get(stream, 0)
        assert buffer.earliest(stream) == (kept[0].start if kept else None)
        at_or_after = [row for row in kept if row.timestamp_ns_max >= timestamp]
        found = buffer.first_at_or_after(stream, timestamp)
        assert found == (at_or_after[0] if at_or_after else None)
        wanted = set(range(start, start + length))
        frames = kept_frames(buffer, stream, start, start + length)
        assert frames == [row for row in kept if wanted & set(range(row.start, row.stop))]


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 40), st.integers(-9, 9)), min_size=1),
    st.integers(0, 120),
    st.integers(1, 8),
    st.sampled_from([None, 0.005]),
)
def test_frames_in_a_row_are_kept_as_one_by_one(shapes, bytes_max, frames_max, age_max):
    one, many = (ReplayBuffer(bytes_max, frames_max=frames_max, age_max=age_max) for _ in range(2))
    frames, following = [], 3
    for count, size, latest in shapes:
        frames.append((following, count, bytes(size), latest))
        following += count
    for start, count, frame, latest in frames:
        one.append("s", start, count, frame, now_ns=7, timestamp_ns_max=latest)
    many.append_many("s", frames, now_ns=7)
    for name in ("bytes_held", "messages_evicted"):
        assert getattr(one, name) == getattr(many, name), name
    assert (one.earliest("s"), one.next("s")) == (many.earliest("s"), many.next("s"))
    assert kept_frames(one, "s") == kept_frames(many, "s")
    assert one.first_at_or_after("s", 0) == many.first_at_or_after("s", 0)
    assert one.next_deadline_ns() == many.next_deadline_ns()
