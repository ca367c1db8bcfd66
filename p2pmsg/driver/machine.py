"""Which drivers give peers their turns here; a test has others."""

from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from p2pmsg.driver.peer import Peer

if TYPE_CHECKING:
    import asyncio

    from p2pmsg.driver.loop import LoopDriver
    from p2pmsg.driver.manual import ManualDriver


class Machine:
    """Threads and event loops of the machine. A network in memory has drivers of its own.

    Attributes:
        in_memory: whether all is: peers have no descriptors to be closed, and no threads; what
            those would do is done in their turns.

    """

    in_memory = False

    def thread_driver(self, peer: Peer) -> Any:
        """Return what drives a peer for code without an event loop, to be started."""
        from p2pmsg.driver.threads import ThreadDriver

        return ThreadDriver(peer)

    def loop_driver(self, peer: Peer) -> "LoopDriver | ManualDriver":
        """Return what drives a peer in the event loop that runs, or in one of the caller's own."""
        import asyncio

        from p2pmsg.driver.loop import LoopDriver

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            from p2pmsg.driver.manual import ManualDriver

            return ManualDriver(peer)
        return LoopDriver(peer)

    async def pause(self, seconds: float, until: "asyncio.Event") -> None:
        """Wait so long, or until an event."""
        import asyncio

        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await until.wait()

    def at_work(self) -> AbstractContextManager[None]:
        """Return what is entered while a task waits for a thread's work."""
        return nullcontext()
