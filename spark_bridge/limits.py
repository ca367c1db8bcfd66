"""How a limit of messages a batch is shared out among streams. Pure."""

from random import Random
from zlib import crc32

from spark_bridge.offsets import Positions


def limit(before: Positions, after: Positions, rows_max: int) -> Positions:
    """Return how far to read so that it is at most `rows_max` messages in all.

    Every stream that has something gets one message first, and the rest by what each has: so a
    small stream does not starve beside large ones. Where there are more streams than messages, each
    time others have their turn. What only appears in `after` (a new stream, pinned) stays as it is.
    """
    owed: list[tuple[str, int, str, int]] = []
    for endpoint, sessions in sorted(after.items()):
        for session, topics in sorted(sessions.items()):
            known = before.get(endpoint, {}).get(session, {})
            for topic, stop in sorted(topics.items()):
                count = stop - known.get(topic, stop)
                if count > 0:
                    owed.append((endpoint, session, topic, count))
    total = sum(count for *_, count in owed)
    if total <= rows_max:
        return after
    # The order is another one for each position, and the same for the same.
    Random(crc32(repr(before).encode())).shuffle(owed)
    owed = owed[:rows_max]
    spare = rows_max - len(owed)
    rest = sum(count - 1 for *_, count in owed)
    limited = {
        endpoint: {session: dict(topics) for session, topics in sessions.items()}
        for endpoint, sessions in after.items()
    }
    taken = {
        (endpoint, session, topic): 1 + (spare * (count - 1) // rest if rest else 0)
        for endpoint, session, topic, count in owed
    }
    unspent = rows_max - sum(taken.values())
    for endpoint, session, topic, count in owed:
        if unspent and taken[endpoint, session, topic] < count:
            taken[endpoint, session, topic] += 1
            unspent -= 1
    for endpoint, sessions in limited.items():
        for session, topics in sessions.items():
            known = before.get(endpoint, {}).get(session, {})
            for topic, stop in topics.items():
                start = known.get(topic, stop)
                if start < stop:
                    topics[topic] = start + taken.get((endpoint, session, topic), 0)
    return limited
