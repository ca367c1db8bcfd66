"""Values decoded straight into types, and what is done with those that do not fit."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

from p2pmsg import codec, wire
from p2pmsg.errors import ConfigError, InvalidValueError
from p2pmsg.message import Message
from p2pmsg.topics import ByTopic
from p2pmsg.wire import Frame, FrameError

OnInvalid = Literal["raise", "skip"] | Callable[[InvalidValueError], object]
_PLACE: Final = re.compile(r"(.*) - at `(.*)`", re.DOTALL)
_TYPES_LIMIT: Final = "types by topic, or by prefix with a '*'"


class Misfit:
    """Stands in the place of a value that does not fit its type.

    Attributes:
        value: the value, as it is without a type.
        reason: what is wrong with it.
        path: where in it.

    """

    __slots__ = ("path", "reason", "value")

    def __init__(self, value: Any, error: Exception) -> None:
        self.value = value
        text = str(error)
        if not isinstance(error, codec.CodecError):
            text = f"{type(error).__name__}: {text}"
        found = _PLACE.fullmatch(text)
        self.reason, self.path = (text, "$") if found is None else (found[1], found[2])


def converted(value: Any, value_type: Any, what: str) -> Any:
    """Return a decoded value as a type wants it; `InvalidValueError` where it does not fit.

    Args:
        value: as a message without a type has it.
        value_type: the type.
        what: whose value it is, for the error.

    """
    try:
        return codec.convert(value, value_type)
    except Exception as error:  # a type of the user's may raise anything
        misfit = Misfit(value, error)
        raise InvalidValueError(what, misfit.path, misfit.reason) from error


class InvalidValue(NamedTuple):
    """What is delivered in the place of a message whose value does not fit."""

    start: int
    """Its sequence."""
    error: InvalidValueError


def invalid_value(message: Message) -> InvalidValue:
    """Return what is delivered in the place of a message, whose value is a `Misfit`."""
    misfit = message.value
    plain = Message(
        message.topic, misfit.value, message.timestamp_ns, message.sequence, message.origin,
        message.key, message.headers, message.late,
    )  # fmt: skip
    what = f"message {plain.sequence} of {plain.topic!r} from {plain.publisher!r}"
    error = InvalidValueError(what, misfit.path, misfit.reason, plain)
    return InvalidValue(message.sequence, error)


class ValueType:
    """Decodes the values of a stream into one type.

    Most values are decoded straight into it, a whole frame in one call. What came by an extension
    type (a Decimal within a Struct) cannot be: it is decoded first and then converted, which takes
    about twice as long; from the first such frame on that is done at once.
    """

    __slots__ = ("_converts", "_decode", "_decode_value", "_kind", "_kinds")

    def __init__(self, kind: Any) -> None:
        self._kind, self._kinds = kind, list[kind]
        self._decode = wire.typed_decode(kind)
        self._decode_value = codec.make_decoder(kind).decode
        self._converts = False

    def convert(self, value: Any) -> Any:
        """Return a decoded value as the type, or a `Misfit`."""
        try:
            return codec.convert(value, self._kind)
        except Exception as error:  # a type of the user's may raise anything
            return Misfit(value, error)

    def decode_one(
        self, data: bytes, body_at: int, base_ns: int
    ) -> tuple[Any, int, str | None, dict[str, Any] | None]:
        """Do as `wire.decode_one`; `FrameError` also where `sift` is to be used instead."""
        if self._converts:
            raise FrameError("value")
        try:
            return wire.decode_one(data, body_at, base_ns, self._decode_value, self._decode)
        except Exception:  # what a type of the user's raises comes out of `sift`, with its path
            raise FrameError("value") from None

    def decode_body(self, data: bytes, body_at: int, count: int, base_ns: int) -> wire.Columns:
        """Do as `wire.decode_body`; `FrameError` also where `sift` is to be used instead."""
        if self._converts:
            raise FrameError("value")
        try:
            return wire.decode_body(data, body_at, count, base_ns, self._decode)
        except Exception:  # as above
            raise FrameError("value") from None

    def sift(self, frame: Frame) -> tuple[wire.Columns, bool]:
        """Return the columns of a frame, and whether some of its values are a `Misfit`.

        Raises:
            FrameError: the frame is malformed.

        """
        place = frame.data, frame.body_at, frame.count, frame.base_timestamp_ns
        try:
            return self.decode_body(*place), False
        except FrameError:
            values, timestamps, keys, headers = wire.decode_body(*place)
        made, bad = self.convert_all(values)
        self._converts = self._converts or not bad
        return (made, timestamps, keys, headers), bool(bad)

    def convert_all(self, values: list[Any]) -> tuple[list[Any], list[int]]:
        """Return decoded values as the type, and the indexes of those that are a `Misfit`."""
        if self._converts:
            try:
                return codec.convert(values, self._kinds), []
            except Exception:  # which of them it is comes out one by one
                pass
        made: list[Any] = []
        bad: list[int] = []
        for at, value in enumerate(values):
            try:
                made.append(codec.convert(value, self._kind))
            except Exception as error:
                made.append(Misfit(value, error))
                bad.append(at)
        return made, bad


class ValueTypes:
    """Which type the values of a topic have, and what is done with those that do not fit.

    Args:
        type: of the values of all topics; None: they are not typed.
        types: types by topic, or by prefix followed by `*`. Of several that fit, the topic itself
            goes first, then the longest prefix; the values of other topics are not typed.
        on_invalid: see `Subscriber`.

    Raises:
        ConfigError: an argument is none of these.

    Attributes:
        on_invalid: as given.

    """

    def __init__(self, type: Any, types: Mapping[str, Any] | None, on_invalid: OnInvalid) -> None:  # noqa: A002
        if type is not None and types is not None:
            raise ConfigError("types", "left out where type is given", types)
        if types is not None and not isinstance(types, Mapping):
            raise ConfigError("types", _TYPES_LIMIT, types)
        if not callable(on_invalid) and on_invalid not in ("raise", "skip"):
            raise ConfigError("on_invalid", '"raise", "skip" or a callable', on_invalid)
        self.on_invalid = on_invalid
        by_topic = dict(types or {}) if type is None else {"*": type}
        field = "types" if type is None else "type"
        kinds = {topic: value_type(field, kind) for topic, kind in by_topic.items()}
        self._of: ByTopic[ValueType | None] = ByTopic(field, kinds, None, _TYPES_LIMIT)

    def of(self, topic: str) -> ValueType | None:
        """Return the type of the values of a topic; None: they are not typed."""
        return self._of.of(topic)


UNTYPED: Final = ValueTypes(None, None, "raise")


def value_type(field: str, kind: Any) -> ValueType:
    """Return what decodes into a type; `ConfigError` where nothing can be decoded into it."""
    try:
        codec.check_kind(kind)
        return ValueType(kind)
    except (TypeError, NameError) as error:
        limit = f"a type that values can be decoded into ({error})"
        raise ConfigError(field, limit, kind) from error
