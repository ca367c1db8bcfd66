"""All that a replay buffer keeps of a stream."""

from recovery import Kept, ReplayBuffer


def kept_frames(buffer: ReplayBuffer, stream: str, start: int = 0, stop: int = 2**62) -> list[Kept]:
    found: list[Kept] = []
    while (kept := buffer.first(stream, start, stop)) is not None:
        found.append(kept)
        start = kept.stop
    return found
