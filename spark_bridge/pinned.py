"""A `Security` that also knows which keys `peers` pins. Imported only where there are keys."""

import os
from collections.abc import Mapping
from typing import Any

import p2pmsg


class PinnedSecurity(p2pmsg.Security):
    """Takes the keys that `peers` pins from the options, since the endpoints do not have them.

    Args:
        pins: public keys, as text, by endpoint.
        key, files: as of `Security`.

    """

    __slots__ = ("_pins",)

    def __init__(
        self,
        pins: Mapping[str, str],
        key: "str | p2pmsg.security.KeyPair",
        **files: str | os.PathLike[str] | None,
    ) -> None:
        given: dict[str, Any] = files
        super().__init__(key, **given)
        self._pins = pins

    def server_key(self, endpoint: Any) -> bytes:
        """Return the public key that the peer at an endpoint has to hold; see `Security`."""
        pinned = self._pins.get(str(endpoint))
        return super().server_key(endpoint if pinned is None else f"{endpoint}?key={pinned}")
