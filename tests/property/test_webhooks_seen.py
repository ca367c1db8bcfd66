"""The file of webhook ids: whatever is between its records, those that are whole are read."""

from hypothesis import given
from hypothesis import strategies as st

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
