"""How commands that publish wait for those who are to have it."""

from collections.abc import Callable

from p2pmsg.sync.publisher import Publisher

_BRIEF_S = 0.5
"""So long nobody has to be told what is waited for."""


def wait_for_subscribers(
    publisher: Publisher, wanted: int, timeout: float | None, say: Callable[[str], None]
) -> None:
    """Wait until so many subscribe, and say so where they are not there already.

    Raises:
        TimeoutError: they did not come in time.

    """
    if not wanted:
        return
    brief = _BRIEF_S if timeout is None else min(_BRIEF_S, timeout)
    try:
        publisher.wait_for_subscribers(wanted, timeout=brief)
        return
    except TimeoutError:
        if timeout is None or timeout > brief:
            say(f"waiting for {wanted} subscriber{'s' * (wanted > 1)} at {publisher.endpoint}")
    try:
        rest = None if timeout is None else timeout - brief
        publisher.wait_for_subscribers(wanted, timeout=rest)
    except TimeoutError:
        there = publisher.stats().subscribers
        raise TimeoutError(f"{there} of {wanted} subscribers came within {timeout:g} s") from None
