"""Deleting what is too old or too much: the oldest segments, whole ones at a time."""

from collections.abc import Callable, Iterator

from recovery.log.catalog import Catalog
from recovery.log.config import LogConfig
from recovery.log.index import Key, SegmentIndex, index_name
from recovery.log.state import LogState
from recovery.log.store import LogStore

_S = 1_000_000_000


class Retention:
    """Deletes segments of a log.

    Args:
        config: the bounds.
        store, catalog, state: of the log.
        following: the next sequence by stream; those that are gone for good are taken out.
        write_state: writes the state.

    """

    def __init__(
        self,
        config: LogConfig,
        store: LogStore,
        catalog: Catalog,
        state: LogState,
        following: dict[Key, int],
        write_state: Callable[[], None],
    ) -> None:
        self._config = config
        self._store = store
        self._catalog = catalog
        self._state = state
        self._next = following
        self._write_state = write_state
        self._left_over: list[str] = []
        """Indexes of deleted segments that could not be deleted yet."""

    def expire(self, byte_count: int, now_ns: int) -> Iterator[SegmentIndex]:
        """Delete what is to go, of a log of so many bytes, and yield it; raises `OSError`."""
        yield from self._expire(byte_count, now_ns)
        while self._left_over:
            self._store.remove(self._left_over[0])
            del self._left_over[0]

    def _expire(self, byte_count: int, now_ns: int) -> Iterator[SegmentIndex]:
        while len(self._catalog.segments) > 1:
            oldest = self._catalog.segments[0]
            if byte_count <= self._config.retention_bytes and not self._is_old(oldest, now_ns):
                return
            self._keep_tails(oldest)
            if not self._store.remove_unshared(oldest.name):
                return
            self._catalog.drop_first()
            byte_count -= oldest.size
            self._left_over.append(index_name(oldest.first_record))
            self._forget(oldest)
            yield oldest

    def _is_old(self, segment: SegmentIndex, now_ns: int) -> bool:
        age_s = self._config.retention_age_s
        return age_s is not None and now_ns - segment.appended_ns_last > age_s * _S

    def _keep_tails(self, oldest: SegmentIndex) -> None:
        """Write down where streams go on of which the other segments do not say it."""
        session, tails, changed = self._state.session, self._state.tails, False
        for key, stream in oldest.streams.items():
            if key[0] != session:
                continue
            others = (other for other in self._catalog.of_stream(key) if other is not oldest)
            following = self._next.get(key, 0)
            if any(other.streams[key].frames for other in others):
                if not self._state.always:
                    continue  # should a crash take them all, the marks hold
                following = stream.stop
            if tails.get(key[1], 0) < following:
                tails[key[1]] = following
                changed = True
        if changed:
            self._write_state()

    def _forget(self, oldest: SegmentIndex) -> None:
        """Forget the streams of others, and skipped ranges before all that is kept."""
        session, skips = self._state.session, self._state.skips
        for key in oldest.streams:
            if key[0] != session:
                if not self._catalog.of_stream(key):
                    self._next.pop(key, None)
                continue
            earliest = self._catalog.earliest(key)
            if earliest is not None and key[1] in skips:
                skips[key[1]] = [skip for skip in skips[key[1]] if skip[1] > earliest]
