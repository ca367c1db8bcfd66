# Made by `python -m tests.faces` from p2pmsg/peers/loop/heads_watch.py: change that one.
"""The face of the heads watch for threads."""

from p2pmsg.checks import time_to_wait
from p2pmsg.driver.faces import ThreadFace
from p2pmsg.peers.heads_watch import HeadsWatchBase


class HeadsWatch(HeadsWatchBase, ThreadFace):
    """Keeps the heads of the publishers at several endpoints, without receiving their messages.

    Where a relay is at an endpoint, all sessions that it serves are followed. With threads its
    methods may be called from any. None of them waits for a publisher but `wait_until_asked`.

    Args:
        endpoints: of publishers and relays.
        topics: which are of interest: those are asked for, and heartbeats of them come as well.
            Prefixes that end in `*` may be among them: without heartbeats, and `denied` has those
            of which not all topics may be had. Default: all of a publisher's topics, without their
            heartbeats; one that may not be had is left out, which `denied` does not say.
        refresh: how old the heads of a busy publisher may be, in seconds. Default 0.05. With more
            than 50 sessions they get older, 1 ms each.
        time_ns: fill in `StreamHead.first_at`, too, for this time in ns since the epoch. Default
            None: it is None.
        security: this peer's key, and whom it knows: connections are encrypted, and both ends
            known to each other; over tcp and ipc. Default None: open.
            A connection that is refused is tried again; `EndpointHeads.unanswered` says why.

    Raises:
        ConfigError: an argument is out of its limits, or an endpoint is none.
        AuthenticationError: no key is pinned for an endpoint, or another one is.

    """

    def wait_until_asked(self, timeout: float) -> bool:
        """Wait until every publisher has answered once, at most `timeout` seconds.

        Returns:
            Whether all have; False also where the watch was closed meanwhile.

        Raises:
            ConfigError: `timeout` is no number of seconds.
            AccessDeniedError: one gives us no right to a topic that was asked for, or to any;
                `EndpointHeads.denied` has all. It goes on.

        """
        verb = self._peer.wait_until_asked(time_to_wait("timeout", timeout))
        is_there: bool = self._driver.run(verb)
        return is_there

    def close(self) -> None:
        """Close the sockets; a second call does nothing."""
        self._driver.stop()
