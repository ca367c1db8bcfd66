"""How senders of webhooks prove who they are: Standard Webhooks, GitHub, Stripe, or a token."""

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from p2pmsg.http.asgi import RejectedError
from p2pmsg.toolkit import check
from p2pmsg.webhooks.signatures import (
    SIGNATURES_MAX,
    Secret,
    Verifier,
    bytes_of,
    content_of,
    is_signed,
    secrets_of,
    verifiers,
)

Scheme = Literal["standard", "github", "stripe", "token"]
SCHEMES: Final = ("standard", "github", "stripe", "token")
_ID_MAX: Final = 256
_TOLERANCE_S: Final = 300
"""How old a signature may be, or how far ahead. Ids are kept for longer than twice that."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What a request's signature is about.

    Attributes:
        id: the request's id, the same when it is sent again; empty where it has none.
        type: what kind of event it is, where the scheme has that; else empty.

    """

    id: str
    type: str = ""


Verify = Callable[[Mapping[str, str], bytes, float], Proof]
"""Takes headers, the raw body and the time in seconds; raises `RejectedError`."""


def make_verify(scheme: Scheme, secrets: Secret | Sequence[Secret]) -> Verify:
    """Return what checks requests.

    Args:
        scheme: whose signatures.
        secrets: one, or several while one is replaced.

    Raises:
        ConfigError: the scheme is none, or a secret is not one for it.

    """
    check("scheme", scheme, scheme in SCHEMES, f"one of {', '.join(SCHEMES)}")
    given = secrets_of(secrets)
    check("secrets", len(given), len(given) > 0, "at least one")
    if scheme == "standard":
        return partial(_standard, verifiers(given))
    verify = {"github": _github, "stripe": _stripe, "token": _token}[scheme]
    return partial(verify, [bytes_of(secret) for secret in given])


def _standard(
    keys: Sequence[Verifier], headers: Mapping[str, str], body: bytes, now: float
) -> Proof:
    request_id = headers.get("webhook-id", "")
    stamp = headers.get("webhook-timestamp", "")
    signature = headers.get("webhook-signature", "")
    if not (request_id and stamp and signature):
        raise RejectedError(401, "unsigned", "webhook-id, -timestamp or -signature is missing")
    if not is_signed(keys, signature, content_of(request_id, stamp, body)):
        raise RejectedError(401, "signature", "no signature fits")
    _check_time(stamp, now)
    return Proof(_checked_id(request_id))


def _github(secrets: Sequence[bytes], headers: Mapping[str, str], body: bytes, now: float) -> Proof:
    given = headers.get("x-hub-signature-256", "")
    if not given:
        raise RejectedError(401, "unsigned", "X-Hub-Signature-256 is missing")
    if not _is_hmac(secrets, [given.removeprefix("sha256=")], body):
        raise RejectedError(401, "signature", "no signature fits")
    return Proof(
        _checked_id(headers.get("x-github-delivery", "")), headers.get("x-github-event", "")
    )


def _stripe(secrets: Sequence[bytes], headers: Mapping[str, str], body: bytes, now: float) -> Proof:
    given = headers.get("stripe-signature", "")
    stamp, signatures = "", []
    for part in given.split(",")[: SIGNATURES_MAX + 2]:
        name, _, value = part.strip().partition("=")
        if name == "t":
            stamp = value
        elif name == "v1":
            signatures.append(value)
    if not (stamp and signatures):
        raise RejectedError(401, "unsigned", "Stripe-Signature is missing, or has no t and v1")
    if not _is_hmac(secrets, signatures, stamp.encode(errors="replace") + b"." + body):
        raise RejectedError(401, "signature", "no signature fits")
    _check_time(stamp, now)
    try:
        event: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise RejectedError(400, "body", "the body is no JSON") from None
    event = event if isinstance(event, dict) else {}
    event_id, kind = event.get("id"), event.get("type")
    if not isinstance(event_id, str) or not event_id:
        raise RejectedError(400, "id", "the event has no id")
    return Proof(_checked_id(event_id), kind if isinstance(kind, str) else "")


def _token(tokens: Sequence[bytes], headers: Mapping[str, str], body: bytes, now: float) -> Proof:
    kind, _, given = headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not given:
        raise RejectedError(401, "unsigned", "Authorization: Bearer is missing")
    is_good = False
    for token in tokens:
        is_good |= hmac.compare_digest(token, given.strip().encode(errors="replace"))
    if not is_good:
        raise RejectedError(401, "signature", "the token is another one")
    return Proof(_checked_id(headers.get("webhook-id", "")))


def _is_hmac(secrets: Sequence[bytes], signatures: Sequence[str], content: bytes) -> bool:
    """Whether a signature is right; all are looked at, so that the time taken shows no secret."""
    is_good = False
    for secret in secrets:
        own = hmac.new(secret, content, hashlib.sha256).hexdigest().encode()
        for signature in signatures:
            is_good |= hmac.compare_digest(own, signature.encode(errors="replace"))
    return is_good


def _check_time(stamp: str, now: float) -> None:
    if not (stamp.isascii() and stamp.isdecimal() and len(stamp) <= 12):
        raise RejectedError(400, "time", "the timestamp is no number of seconds")
    if abs(int(stamp) - now) > _TOLERANCE_S:
        raise RejectedError(401, "time", f"the timestamp is not within {_TOLERANCE_S} s of now")


def _checked_id(request_id: str) -> str:
    if len(request_id) > _ID_MAX:
        raise RejectedError(400, "id", f"the id is longer than {_ID_MAX} characters")
    return request_id
