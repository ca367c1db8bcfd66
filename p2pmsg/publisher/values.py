"""Decides how exactly a publisher packs the values of its streams."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from p2pmsg import codec
from p2pmsg.errors import MessageError
from p2pmsg.publisher.batch import Batch
from p2pmsg.publisher.packing import is_of_packing
from p2pmsg.publisher.served import PublisherStream
from transports.own_log import own_log as _log

_LATE: Final = (
    "topic %r: a value has a Decimal or the like, or an attrs class with private fields. From now "
    "on each value is looked at; in the frame before, which was published at full rate, such parts "
    "may have gone as text, and private fields not at all. Set exact_types=True"
)
_RUSH_NS: Final = 2_000
_RUSH_COUNT: Final = 16
"""A stream whose values are looked at may be too slow to count as busy; its frames have those of 50
µs then: 48 where a dict of five fields takes 1.2 µs. With more than these it would stay so."""
_PAUSE_NS: Final = 20_000_000
"""After so long without a frame a stream is not at full rate any more."""


class ValueRules:
    """How values are packed: see `PublisherConfig.exact_types` and `enc_hook`."""

    __slots__ = ("_exact", "_hook")

    def __init__(self, exact: bool | None, hook: codec.EncHook | None) -> None:
        self._exact = exact
        self._hook = hook

    def on_frame(self, stream: PublisherStream, batch: Batch, now_ns: int) -> None:
        """Note how fast the messages of a batch came, which is sealed now.

        A stream rushes where they came closer than 2 µs: looking at each would make it slower.
        """
        if stream.encoder is not None and stream.encoder.found:
            stream.needs_exact = True
        if self._exact is None:
            count = batch.count
            rushes = count >= _RUSH_COUNT and now_ns - batch.opened_ns < count * _RUSH_NS
            stream.rushed_ns = now_ns if rushes else None

    def encode_into(
        self, stream: PublisherStream, now_ns: int
    ) -> Callable[[Any, bytearray, int], None]:
        """Return what packs the values of a stream's next batch, except for the first one."""
        if self._exact is False:
            return codec.encoder.encode_into
        rushed_ns = stream.rushed_ns
        if rushed_ns is not None and now_ns - rushed_ns < _PAUSE_NS and not stream.needs_exact:
            return codec.encoder.encode_into
        if stream.encoder is None:
            stream.encoder = codec.ExactEncoder(self._hook)
        return stream.encoder.encode_into

    def prepared(self, stream: PublisherStream, value: Any) -> Any:
        """Return a value as it is packed; `MessageError` names the part that cannot be sent."""
        if self._exact is False or type(value) in codec.SCALARS:
            return value
        packed = codec.packed_if_plain(value)
        if packed is not None:
            return codec.Raw(packed)
        ready, found = codec.prepare_noting(value, self._hook, "value")
        if found and not stream.needs_exact:
            stream.needs_exact = True
            if stream.rushed_ns is not None:
                _log.warning(_LATE, stream.topic)
        return ready

    def packs_as_it_is(self, values: Sequence[Any]) -> bool:
        """Whether the encoder packs these values exactly, or need not."""
        if self._exact is False:
            return True
        kinds = [*map(type, values)]
        kind = kinds[0]  # where all are of one type, counting it takes 10 ns a value, a set 16
        if kind not in codec.SCALARS:
            return False
        return kinds.count(kind) == len(kinds) or codec.SCALARS.issuperset(kinds)

    def prepared_each(self, values: Sequence[Any], at: int) -> list[Any]:
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
