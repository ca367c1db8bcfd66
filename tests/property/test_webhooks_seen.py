"""The file of webhook ids: what is whole is read, and at each moment it has all that was noted."""

from contextlib import nullcontext
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from p2pmsg.webhooks import seen as seen_module
from p2pmsg.webhooks.seen import MAGIC, SeenIds, _digest, _packed

DAY = 86_400.0
junk = st.one_of(
    st.binary(max_size=40),
    st.integers(0, 100).map(bytes),
    st.integers(1, 31).map(lambda size: _packed(1, _digest("torn"))[:size]),
)


@given(parts=st.lists(st.tuples(junk, st.integers(0, 50).map(str)), max_size=30), end=junk)
def test_records_are_found_wherever_they_are(tmp_path_factory, parts, end):
    path = tmp_path_factory.mktemp("seen") / "seen"
    records = b"".join(before + _packed(1, _digest(name)) for before, name in parts)
    path.write_bytes(MAGIC + records + end)
    for _ in range(2):
        seen = SeenIds(path, DAY, 1000, 1.0)
        assert all(seen.has(name, 1.0) for _, name in parts)
        assert len(seen) == len({name for _, name in parts})
        seen.close()
    assert (path.stat().st_size - len(MAGIC)) == 32 * len(seen)


def left_by_a_kill(path):
    """Return the ids of a file as it is now."""
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    again = SeenIds(copy, DAY, 100, 1.0)
    again.close()
    return again


def next_call(steps, result):
    try:
        return steps.send(result)
    except StopIteration:
        return None


@given(
    names=st.lists(st.one_of(st.none(), st.integers(0, 60).map(str)), max_size=60),
    ids_max=st.sampled_from([5, 100]),
    is_doubtful=st.booleans(),
)
def test_no_moment_to_be_killed_in_costs_an_id(tmp_path_factory, names, ids_max, is_doubtful):
    """None is a step of a sync: a call that waits for the disk, or what is between two of them."""
    path = tmp_path_factory.mktemp("seen") / "seen"
    with patch.object(seen_module, "_GROWTH", 4):
        seen = SeenIds(path, DAY, ids_max, 0.0)
        seen._is_doubtful = is_doubtful
        steps = call = result = None
        kept = []
        for name in names:
            if name is not None:
                seen.add(name, 1.0)
                kept = [*[one for one in kept if one != name], name][-ids_max:]
            elif call is not None:
                call, result = None, call()
            else:
                steps = steps or seen.sync_steps(nullcontext())
                call = next_call(steps, result)
                result, steps = None, steps if call else None
            again = left_by_a_kill(path)
            assert all(seen.has(one, 1.0) and again.has(one, 1.0) for one in kept)
            assert seen.unwritten == 0
        if call is not None:
            result = call()
        while steps is not None and (call := next_call(steps, result)) is not None:
            result = call()
        seen.sync()
        assert seen.is_settled
        assert seen.failures == 0
        assert [path.name for path in path.parent.glob("seen*.tmp")] == []
        seen.close()
