"""When a probe that has no echo yet is sent again, to a publisher as to a relay."""

from typing import Final

_MS: Final = 1_000_000
PROBE_RETRY_NS: Final = 100 * _MS
PROBE_SOON_NS: Final = 10 * _MS
_TRIES_SOON, _TRIES_QUICK, _TRIES_MAX = 4, 4, 8
"""Then probes come ever more rarely, up to 1.6 s: the echo of many streams takes its time, and so
do those of many subscribers that join at the same time."""


def probe_wait_ns(tries: int) -> int:
    """Return how long the echo of a probe is waited for that was repeated so often.

    The probe and the subscription to its echo go over two connections, so a first probe may come
    too early: 10 ms double to 80; then it is 100, four times, and doubles again.
    """
    if tries < _TRIES_SOON:
        return PROBE_SOON_NS << tries
    later = tries - _TRIES_SOON
    return PROBE_RETRY_NS << min(max(0, later - _TRIES_QUICK), _TRIES_MAX - _TRIES_QUICK)
