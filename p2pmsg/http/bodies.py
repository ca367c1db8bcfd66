"""What is in a request's body, by its content type: JSON, text or bytes."""

import json
import re
from collections.abc import Mapping
from encodings import normalize_encoding
from encodings.aliases import aliases
from math import isfinite
from typing import Any, Final, Literal

from p2pmsg.http.asgi import RejectedError

_CHARSET: Final = re.compile(r';\s*charset\s*=\s*"?([^\s";,]+)', re.IGNORECASE)
_CHARSETS: Final = frozenset(
    [*aliases, *aliases.values(), "cp737", "cp874", "koi8_t", "koi8_u", "utf_8_sig"]
)
"""Python keeps each name that it was ever asked for, so it is asked for these alone."""
_SHOWN_MAX: Final = 40


def _number(token: str) -> float:
    if isfinite(value := float(token)):
        return value
    raise ValueError(f"{_shown(token)} is larger than a float can be")


def _no_constant(token: str) -> Any:
    raise ValueError(f"{token} is not JSON")


_decode: Final = json.JSONDecoder(parse_float=_number, parse_constant=_no_constant).decode


def kind_of(headers: Mapping[str, str]) -> str:
    """Return the content type without its parameters, in lower case; empty where there is none."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def value_of(
    headers: Mapping[str, str], body: bytes, errors: Literal["strict", "replace"] = "strict"
) -> Any:
    """Return a body as the value that its content type says: JSON, text, else bytes.

    Args:
        headers: of the request, by lower-case names.
        body: in UTF-8, or for `text/…` in the charset that is named; JSON also in UTF-16 or UTF-32.
        errors: what is done about bytes of text that its charset does not have. Default: refused.

    Raises:
        RejectedError: the body is not what its content type says (400), or Python does not know
            its charset (415).

    """
    kind = kind_of(headers)
    if kind == "application/json" or kind.endswith("+json"):
        return json_of(body, kind)
    if kind.startswith("text/"):
        found = _CHARSET.search(headers["content-type"])
        return _text(kind, body, found[1] if found else "utf-8", errors)
    return body


def json_of(body: bytes, kind: str = "JSON") -> Any:
    """Return the value of a JSON text; `RejectedError` says where it is none.

    NaN and the infinities are none, nor are numbers that would become infinite.
    """
    try:
        return _decode(body.decode(json.detect_encoding(body), "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise RejectedError(400, "body", f"the body is no {kind}: {error}") from error


def _text(kind: str, body: bytes, charset: str, errors: str) -> str:
    unknown = RejectedError(415, "charset", f"the charset {_shown(charset)!r} is not known here")
    if normalize_encoding(charset).lower() not in _CHARSETS:
        raise unknown
    try:
        return body.decode(charset, errors)
    except LookupError:  # Python has it by another name alone, or it is none of text
        raise unknown from None
    except ValueError as error:
        raise RejectedError(400, "body", f"the body is no {kind}: {error}") from error


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
