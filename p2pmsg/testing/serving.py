"""How a simulated publisher, or relay, answers requests."""

from typing import Any

from transports import MemoryRecoveryServer, PeerUnreachableError

_REPLIES_PER_ROUND = 64


def take_requests(server: MemoryRecoveryServer, requests: Any, *, now_ns: int) -> None:
    """Give the requests that have come to their handler."""
    while (request := server.receive()) is not None:
        requests.receive(*request, now_ns=now_ns)


def send_replies(server: MemoryRecoveryServer, requests: Any, *, now_ns: int) -> None:
    """Send the replies that wait, as the threaded driver does."""
    for _ in range(_REPLIES_PER_ROUND):
        reply = requests.next_reply(now_ns=now_ns)
        if reply is None:
            break
        if reply.is_in_log and not requests.read(reply):
            requests.refuse(reply)
            continue
        try:
            if server.reply(reply.requester, reply.frame):
                requests.reply_sent(reply, now_ns=now_ns)
            else:
                requests.reply_blocked(reply, now_ns=now_ns)
        except PeerUnreachableError:
            requests.requester_gone(reply)
