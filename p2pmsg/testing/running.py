"""Runs a service, such as an `App`, on a network in memory."""

from contextlib import ExitStack
from typing import Protocol

from p2pmsg.driver.virtual import Turns
from p2pmsg.testing.virtual_peers import VirtualProcess


class Service(Protocol):
    """What runs in an event loop until it is stopped; a `p2pmsg.App` is one."""

    async def serve(self) -> None:
        """Run until `stop`."""

    def stop(self) -> None:
        """End what runs, gracefully."""


class Running:
    """A service that runs within a `with` block, or within `async with`.

    Without asyncio it has an event loop of its own, whose tasks go on while the network's time
    passes. One whose process is killed is cancelled, and nothing is raised.

    Args:
        turns: let time pass.
        service: what runs.
        process: in which its peers are.

    """

    def __init__(self, turns: Turns, service: Service, process: VirtualProcess) -> None:
        self._turns, self._service, self._process = turns, service, process
        self._within = ExitStack()

    async def __aenter__(self) -> VirtualProcess:
        self._deaths = self._process.deaths
        self._task = self._process.begin(self._service.serve())
        await self._turns.wait_for(self._task.done, 0.0)  # tasks begin
        return self._process

    async def __aexit__(self, *_: object) -> None:
        self._service.stop()
        await self._turns.wait_until(self._task.done, None)
        if self._process.deaths == self._deaths:
            await self._task
        elif not self._task.cancelled():
            self._task.exception()  # its peers were gone

    def __enter__(self) -> VirtualProcess:
        self._loop = self._within.enter_context(self._turns.in_background())
        return self._loop.run_until_complete(self.__aenter__())

    def __exit__(self, *_: object) -> None:
        with self._within:
            self._loop.run_until_complete(self.__aexit__())
