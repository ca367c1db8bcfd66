"""Asks publishers and relays where the streams of a session stand, once for all connections."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import transports
from p2pmsg.errors import AccessDeniedError, P2PError
from p2pmsg.http.resume import SessionHeads
from p2pmsg.http.upstream import RangePool

_ASKERS: Final = 2
_WAIT_S: Final = 1.0
"""How long each endpoint may take to answer."""
_AGAIN_S: Final = 0.5
_KNOWN_MAX: Final = 1000
_ASKED_MAX: Final = 64
"""Questions at once: any client names sessions. Further ones are asked later."""


class HeadQuestions:
    """Lives in one event loop; its threads wait for the answers.

    Args:
        pool: has the readers that are asked by.

    """

    def __init__(self, pool: RangePool) -> None:
        self._pool = pool
        self._known: dict[int, tuple[float, SessionHeads]] = {}
        self._asked: dict[int, asyncio.Future[SessionHeads]] = {}
        self._closed = False
        self._threads = ThreadPoolExecutor(_ASKERS, "http-heads")

    def look(self, session: int, since_s: float) -> SessionHeads | None:
        """Return a session's heads if they were asked for since then; asks when that is due.

        An older answer says nothing about a position: what it names may have been published after.

        Args:
            session: of the streams.
            since_s: by the monotonic clock, in seconds.

        """
        begun_s, heads = self._known.get(session, (float("-inf"), None))
        now_s = time.monotonic()
        if now_s - begun_s >= _AGAIN_S or begun_s < since_s:
            self._ask(session, now_s)
        return heads if begun_s >= since_s else None

    def stop(self) -> None:
        """Ask nothing any more; called in the event loop."""
        self._closed = True
        for asked in self._asked.values():
            asked.cancel()

    def close(self) -> None:
        """Wait for the threads, which end with the pool's `stop`."""
        self._threads.shutdown(cancel_futures=True)

    def _ask(self, session: int, now_s: float) -> None:
        if self._closed or session in self._asked or len(self._asked) >= _ASKED_MAX:
            return
        loop = asyncio.get_running_loop()
        asked = loop.run_in_executor(self._threads, self._heads, session)
        self._asked[session] = asked
        asked.add_done_callback(lambda done: self._take(session, now_s, done))

    def _take(self, session: int, begun_s: float, done: "asyncio.Future[SessionHeads]") -> None:
        del self._asked[session]
        if done.cancelled() or done.exception() is not None:
            return
        self._known.pop(session, None)
        self._known[session] = begun_s, done.result()
        if len(self._known) > _KNOWN_MAX:
            del self._known[next(iter(self._known))]

    def _heads(self, session: int) -> SessionHeads:
        following: dict[str, int] = {}
        is_own = False
        is_whole = True
        for endpoint in self._pool.endpoints:
            try:
                found = self._heads_at(endpoint, session)
            except AccessDeniedError:
                continue
            except (P2PError, OSError, transports.TransportError):  # TimeoutError: it may have them
                is_whole = False
                continue
            if found is None:
                continue
            heads, is_publisher = found
            if is_publisher:
                following, is_own = heads, True
            elif not is_own:
                for topic, at in heads.items():
                    following[topic] = max(at, following.get(topic, 0))
        return SessionHeads(following, is_own, is_whole)

    def _heads_at(self, endpoint: str, session: int) -> tuple[dict[str, int], bool] | None:
        """Return what one endpoint has, and whether it is the publisher; None: another session."""
        with self._pool.reader(endpoint, _WAIT_S) as reader:
            entry = next((one for one in reader.sessions(_WAIT_S) if one.session == session), None)
            if entry is None:
                return None
            heads = reader.heads(_WAIT_S, session=session)
            if heads.session != session:
                return None
            return {topic: head.next for topic, head in heads.streams.items()}, entry.hops == 0
