"""What the faces of all peers have in common: how they begin, end and are used.

Those for threads import nothing of asyncio, which takes 20 ms.
"""

import sys
import warnings
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar

from p2pmsg.driver.lifecycle import EXIT_S, ClosesItself, NotCopied
from p2pmsg.driver.machine import Machine
from p2pmsg.driver.peer import Peer
from p2pmsg.driver.verbs import Verb
from p2pmsg.errors import ClosedError

if TYPE_CHECKING:
    import asyncio

    from p2pmsg.driver.loop import LoopDriver
    from p2pmsg.driver.manual import Begun, ManualDriver
    from p2pmsg.driver.threads import ThreadDriver

R = TypeVar("R")
HURRIED_S: Final = 0.2
"""How long an `async with` block that was left by a cancellation may take to close."""


class ThreadFace(ClosesItself):
    """A peer for threads. The subclass adds the calls that wait: `self._driver.run(verb)`."""

    _driver: "ThreadDriver"
    _peer: Any
    """Sockets, engine and verbs."""
    _network: Any = Machine()
    """Where it is, which has sockets and drivers for it."""
    _closes_at_once: ClassVar[bool] = False
    """Whether `close` takes no time, and so none is given to it."""
    _exit_s: float = EXIT_S
    """How long it may take to close at the end of the program."""

    def _open(self, make: Callable[[], Peer]) -> None:
        """Have the peer that `make` opens driven from now on; the last step of a constructor."""
        peer = self._peer = make()
        try:
            self._driver = self._network.thread_driver(peer)
            self._on_open()
            self._driver.start(self, type(self)._close_at_exit, self._exit_s)
        except BaseException:
            peer.shut()
            raise

    def _on_open(self) -> None:
        """Take from peer and driver what the calls need that must be fast."""

    def _end(self, verb: Verb[object]) -> None:
        """Run the peer's verb that ends its work, and shut it whatever came; where it is open."""
        driver = self._driver
        if not driver.stopping:
            driver.section.run(bool)  # a call within a call is refused, and ends nothing
            try:
                driver.run(verb)
            finally:
                driver.stop()
        else:
            driver.stop()  # it goes on where Ctrl-C has ended that of another call

    def _close_at_exit(self, left_s: float) -> None:
        self._leave(left_s if self._patience_s is None else min(left_s, self._patience_s))

    def _leave(self, time_s: float | None) -> None:
        self.close(*(() if self._closes_at_once else (time_s,)))


class LoopFace(NotCopied):
    """A peer for an event loop: of asyncio, or of the caller's own where it is made outside of one.

    The subclass adds the calls that wait, each one `await self._driver.run(verb)`.
    """

    _driver: "LoopDriver | ManualDriver"
    _peer: Any
    _network: Any = Machine()
    _make: Callable[[], Peer]
    _opens_later = False
    _patience_s: ClassVar[float | None] = 5.0
    _closes_at_once: ClassVar[bool] = False

    def _open(self, make: Callable[[], Peer]) -> None:
        """Have the peer that `make` opens driven from now on; the last step of a constructor."""
        if self._opens_later:
            self._make = make
        else:
            self._drive(make())

    def _drive(self, peer: Peer) -> None:
        self._peer = peer
        try:
            self._driver = self._network.loop_driver(peer)
            self._on_open()
            self._driver.start(self.close_now)
        except BaseException:
            peer.shut()
            raise

    def _on_open(self) -> None:
        """Take from peer and driver what the calls need that must be fast."""

    @classmethod
    async def open(cls, *arguments: Any, **options: Any) -> Self:
        """Make one as `cls(…)` does, and let the loop go on while that waits.

        For a log that was not closed, so that its end is read, and for the names of hosts.

        Args:
            arguments: as for the class.
            options: as for the class.

        Raises:
            RuntimeError: no event loop is running.
            Others: as the class.

        """
        made = cls.__new__(cls)
        made._opens_later = True
        cls.__init__(made, *arguments, **options)
        import asyncio

        loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(None, made._make)

        def shut(done: "asyncio.Future[Peer]") -> None:
            if done.exception() is None:
                peer = done.result()
                try:
                    loop.run_in_executor(None, peer.shut)
                except RuntimeError:  # the loop is ending, and its executor has
                    peer.shut()

        try:
            made._drive(await asyncio.shield(opening))
        except asyncio.CancelledError:
            opening.add_done_callback(shut)
            raise
        return made

    async def close(self, *arguments: Any, **options: Any) -> Any:
        """Close within so many seconds."""
        raise NotImplementedError

    async def _end(self, verb: Verb[object]) -> None:
        """Run the peer's verb that ends its work, and shut it whatever came; where it is open."""
        driver = self._driver
        if not driver.stopping:
            driver.check_caller()
            driver.section.run(bool)  # a call within a call is refused, and ends nothing
            try:
                await driver.run(verb)
            finally:
                self.close_now()

    def close_now(self) -> None:
        """Close without waiting for anybody, also where its event loop has ended."""
        self._driver.stop()

    def wait_fds(self) -> list[int]:
        """Return the descriptors to wait for, in a loop that is not asyncio's; ask each time.

        Raises:
            RuntimeError: it was made in an event loop, which does that by itself.

        """
        return [] if self._driver.stopping else [*self._manual().peer.fds()]

    @property
    def next_deadline(self) -> float:
        """When `turn` is to be called at the latest, in seconds, as of `time.monotonic()`.

        Raises:
            RuntimeError: it was made in an event loop, which does that by itself.

        """
        return self._manual().due_ns / 1e9

    def turn(self) -> float:
        """Do what can be done at once, for some ms at most, and go on with what was begun.

        Returns:
            After how many seconds to call it again at the latest; 0 where there is more to do.

        Raises:
            ClosedError: the peer is closed, and all that was begun has ended.
            RuntimeError: it was made in an event loop, which does that by itself, or in another
                thread.

        """
        driver = self._driver
        if driver.stopping:
            driver.check_caller()
            raise ClosedError(driver.peer.name, "it is closed, and no turn is left to take")
        return self._manual().take_turn() / 1e9

    def begin(self, call: Awaitable[R]) -> "Begun[R]":
        """Begin a call of this peer, such as `drain()`; it goes on with each turn.

        Args:
            call: what the method returned, not awaited yet.

        Returns:
            What has `done()`, `result()` and `cancel()`.

        Raises:
            RuntimeError: it was made in an event loop, where calls are awaited, or in another
                thread.

        """
        return self._manual().begin(call)

    def _manual(self) -> "ManualDriver":
        from p2pmsg.driver.manual import ManualDriver

        if not isinstance(self._driver, ManualDriver):
            raise RuntimeError(f"{self!r} was made in an event loop, which takes its turns")
        return self._driver

    async def __aenter__(self) -> Self:
        self._driver.check_caller()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        import asyncio

        is_hurried = isinstance(error, asyncio.CancelledError | KeyboardInterrupt)
        time_s = HURRIED_S if is_hurried else self._patience_s
        try:
            await self.close(*(() if self._closes_at_once else (time_s,)))
        except asyncio.CancelledError:
            self.close_now()
            raise

    def __del__(self) -> None:
        driver = getattr(self, "_driver", None)
        if driver is None or self._network.in_memory:
            return
        if not driver.stopping and not sys.is_finalizing():
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)
            self.close_now()
