"""The sockets of a pusher whose jobs are acknowledged by the batch: a PUSH for each worker."""

from typing import TYPE_CHECKING

import transports
from p2pmsg.peers.network import Network
from p2pmsg.queue.pusher_core import PusherCore
from p2pmsg.security.use import curve_server
from transports.own_log import own_log as _log
from transports.trouble import Rarely

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security
    from transports.curve import CurveServer


class PushSockets:
    """Binds, closes and fills them as the pusher's core says.

    Args:
        core: of the pusher.
        server: its ROUTER; these are bound next to it.
        security: keys; None: open.
        network: has the sockets.

    """

    def __init__(
        self,
        core: PusherCore,
        server: transports.RecoveryServer,
        security: "Security | None",
        network: Network,
    ) -> None:
        self._network = network
        self._core = core
        self._server = server
        self._security = security
        self._sockets: dict[int, transports.PushSocket] = {}
        self._made = 0
        self._unbound = Rarely()

    def check(self) -> None:
        """Bind what is wanted, close what is over, and find out where there is space again."""
        core, sockets = self._core, self._sockets
        while core.wanted:
            worker_id = core.wanted[0]
            self._close(worker_id)
            core.on_channel(worker_id, self._bind(worker_id))
            core.wanted.popleft()
        for worker_id in sockets.keys() - core.channels:
            self._close(worker_id)
        for worker_id in core.blocked():
            if worker_id in sockets and sockets[worker_id].wait_for_space(0):
                core.on_space(worker_id, has_space=True)

    def send(self) -> bool:
        """Send frames of jobs; whether there were any. One that has no space is asked for again."""
        frames = self._core.job_frames
        sent = bool(frames)
        while frames:
            worker_id, frame = frames[0]
            socket = self._sockets.get(worker_id)
            if socket is None or not socket.send([frame]):
                self._core.on_space(worker_id, has_space=False)
            frames.popleft()
        return sent

    def close(self) -> None:
        """Close all; what is queued has half a second to leave."""
        for socket in self._sockets.values():
            socket.close(linger_ms=500)

    def _close(self, worker_id: int) -> None:
        socket = self._sockets.pop(worker_id, None)
        if socket is not None:
            socket.close()

    def _bind(self, worker_id: int) -> str:
        """Bind a PUSH socket for a worker; return where, or "" where the system has none."""
        self._made += 1
        at = self._server.bound_to
        if at.scheme == "tcp":
            at = at.with_port(0)
        else:
            at = transports.parse_endpoint(f"{self._server.endpoint}.{self._made}")
        try:
            curve = self._curve_of(self._core.user_of(worker_id))
            socket = self._network.push_socket(at, curve=curve)
        except transports.TransportError as error:
            if self._unbound.is_due():
                _log.warning("no socket can be bound for a puller: %s", error)
            return ""
        self._sockets[worker_id] = socket
        return socket.endpoint

    def _curve_of(self, user: str) -> "CurveServer | None":
        """Return what such a socket needs: with keys, nobody but its worker may connect to it."""
        curve = curve_server(self._security)
        if curve is None:
            return None
        admits, why = curve.admits, curve.why
        from transports.curve import CurveServer

        return CurveServer(
            curve.keys,
            lambda public: user if admits(public) == user else None,
            lambda public: why(public) if admits(public) is None else "another puller has it",
        )
