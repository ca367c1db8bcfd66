"""Decides which values a publisher looks at part by part before it packs them."""

import logging
from collections.abc import Sequence
from typing import Any, Final

from p2pmsg import codec
from p2pmsg.errors import MessageError
from p2pmsg.publisher.batch import is_of_packing
from p2pmsg.publisher.served import PublisherStream

_log: Final = logging.getLogger("p2pmsg")
_LATE: Final = (
    "topic %r: a value has a Decimal or the like, and the first one had none. From now on each "
    "value is looked at; before, such parts may have gone as text. Set exact_types=True"
)


class ValueRules:
    """What is looked at: see `PublisherConfig.exact_types` and `enc_hook`."""

    __slots__ = ("_exact", "_hook")

    def __init__(self, exact: bool | None, hook: codec.EncHook | None) -> None:
        self._exact = exact
        self._hook = hook

    def looks_at(self, stream: PublisherStream, value: Any) -> bool:
        """Whether the values of a stream are looked at, of which `value` may be the first."""
        if stream.exact is None:
            exact = self._exact
            stream.exact = codec.needs_preparing(value) if exact is None else exact
        return stream.exact or self.finds_extension(stream, value)

    def finds_extension(self, stream: PublisherStream, value: Any) -> bool:
        """Look at the first value of a frame, on a stream whose values are not looked at.

        Where it has a part that needs an extension type, all values are looked at from then on.
        """
        if self._exact is not None or not codec.needs_extension(value):
            return False
        stream.exact = True
        _log.warning(_LATE, stream.topic)
        return True

    def prepared(self, stream: PublisherStream, value: Any) -> Any:
        """Return a value as it is packed; `MessageError` names the part that cannot be sent."""
        return codec.prepare(value, self._hook) if self.looks_at(stream, value) else value

    def prepared_all(self, values: Sequence[Any], at: int) -> list[Any]:
        """Return values as they are packed, the first of which is the `at`th of a call."""
        hook = self._hook
        return [codec.prepare(one, hook, f"values[{n}]") for n, one in enumerate(values, at)]

    def after(self, error: MessageError, value: Any) -> Any:
        """Return what to pack after packing `value` has failed, or raise.

        An unknown type goes as the hook says.
        """
        if not is_of_packing(error):
            raise error
        ready = codec.prepare(value, self._hook)
        if ready is value:
            raise error
        return ready
