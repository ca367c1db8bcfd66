"""A pusher's counters, gathered from where they are kept."""

from p2pmsg.queue.pusher_core import PusherCore
from p2pmsg.queue.pusher_io import PusherIO
from p2pmsg.queue.stats import PusherStats, WorkerStats


def pusher_stats(
    core: PusherCore,
    io: PusherIO,
    *,
    endpoint: str,
    restored: int,
    duplicates: int,
    gathered: int,
    missing: int,
) -> PusherStats:
    """Return the counters; it is called under the lock."""
    queue, store = core.queue, core.queue.store
    waiting = gathered + len(io.unsynced)
    invalid = dict(core.invalid)
    if io.malformed:
        invalid["parts"] = io.malformed
    return PusherStats(
        endpoint=endpoint,
        pushed=store.pushed + waiting,
        restored=restored,
        retried=store.retried,
        duplicates=duplicates,
        done=store.done,
        dead=store.died,
        in_flight=store.in_flight + waiting,
        in_hands=queue.assigned_count,
        delayed=store.delayed,
        waiting_for_key=store.key_order.waiting,
        delivered=queue.delivered,
        failed=store.failed,
        recalled=queue.recalled,
        lost=queue.lost,
        refused=queue.refused,
        dead_letters=len(store.dead),
        dead_letters_dropped=store.dead.dropped,
        breaker=queue.breaker.state.value,
        breaker_trips=queue.breaker.trips,
        frames_invalid=invalid,
        held_back=queue.held_back,
        delays_capped=queue.delays_capped,
        extends_capped=queue.extends_capped,
        admin_refused=core.admin_refused,
        log_missing=missing,
        workers=tuple(
            WorkerStats(
                worker.name, worker.assigned.count, worker.acked, worker.failed,
                worker.cut_ns is None, worker.breaker.state.value,
                min(worker.prefetch, worker.allowance), worker.held_back,
            )
            for worker in queue.workers.values()
        ),
    )  # fmt: skip
