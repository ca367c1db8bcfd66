"""Ten thousand receivers on one lossy link: how many of them ask for what all of them lost.

The receivers' waits are drawn by the real `Feedback`, and the publisher is the real `GroupRepair`;
what lies between is a heap of events.
"""

import heapq
from dataclasses import dataclass
from random import Random

from recovery import Feedback, GroupRepair

MS = 1_000_000


@dataclass(frozen=True)
class Outcome:
    """What became of one lost datagram."""

    nacks: int
    repairs: int
    repaired_ms: float


def lose_one(
    receivers: int,
    seed: int,
    *,
    delay_ms: float = 0.25,
    repair_loss: float = 0.0,
    group_size: int | None = None,
    backoff: float = 0.01,
) -> Outcome:
    """Let all of `receivers` lose the same datagram; run until all have it.

    Args:
        receivers: how many there are.
        seed: source of all chance.
        delay_ms: what a datagram takes one way; twice as long at most. Default 0.25.
        repair_loss: part of the repairs that a receiver loses, each on its own.
        group_size: what the publisher says of their number. Default: the truth.
        backoff: the longest of their first waits, in seconds.

    """
    rng = Random(seed)
    feedback = Feedback(rng, backoff=backoff)
    feedback.group_size = group_size or receivers
    repair = GroupRepair()
    events = [(feedback.delay_ns(), 0, receiver, 0) for receiver in range(receivers)]
    heapq.heapify(events)
    missing = set(range(receivers))
    nacks = repairs = now_ns = repaired_ns = 0

    def later() -> int:
        return now_ns + round(delay_ms * MS * (1 + rng.random()))

    while events:
        now_ns, what, receiver, attempt = heapq.heappop(events)
        if what == 0 and receiver in missing:  # its wait is over: it asks
            heapq.heappush(events, (later(), 1, receiver, attempt + 1))
            heapq.heappush(events, (now_ns + feedback.retry_ns(attempt), 0, receiver, attempt + 1))
        elif what == 1:  # the NACK arrives
            nacks += 1
            who = receiver.to_bytes(4, "big")
            repair.request(who, "stream", [(0, 10)], attempt=attempt, now_ns=now_ns)
            while (job := repair.next_job(now_ns=now_ns)) is not None:
                repair.sent(*job, 1400, now_ns=now_ns)
                repairs += 1
                heapq.heappush(events, (later(), 2, 0, 0))
        elif what == 2:  # the repair arrives at all
            before = len(missing)
            missing = {one for one in missing if repair_loss and rng.random() < repair_loss}
            if before and not missing:
                repaired_ns = now_ns  # NACKs that are on their way arrive all the same
    return Outcome(nacks, repairs, repaired_ns / MS)
