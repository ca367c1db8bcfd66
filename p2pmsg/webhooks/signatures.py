"""Who sends: Standard Webhooks' signatures, made and checked, and those of GitHub and Stripe.

Standard Webhooks signs `ID.TIMESTAMP.BODY` by HMAC-SHA256 (`v1`) or Ed25519 (`v1a`). The header has
one signature for each secret, separated by spaces, so that a secret can be replaced without a
moment in which nothing fits.

The package `standardwebhooks` reads no bodies that are not UTF-8 (CloudEvents of bytes, JSON in
UTF-16), takes one secret, knows no Ed25519, and reads the clock; so it only checks ours in tests.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from p2pmsg.errors import ConfigError, MissingExtraError
from p2pmsg.http.asgi import RejectedError
from p2pmsg.toolkit import check

OUT_SCHEMES: Final = ("standard", "github")
"""How requests can be signed that are sent."""
SIGNATURES_MAX: Final = 16
"""How many signatures of a header are looked at; Ed25519 takes 0.1 ms for each."""
_HMAC, _PRIVATE, _PUBLIC = "whsec_", "whsk_", "whpk_"
Secret = str | bytes
"""A secret as text, in base64 where the scheme has that; or as its bytes."""
Signer = tuple[str, Callable[[bytes], bytes]]
"""A version, and what returns the signature of a content."""
Verifier = tuple[str, Callable[[bytes, bytes], bool]]
"""A version, and whether a signature is that of a content."""


def secrets_of(secrets: Secret | Sequence[Secret]) -> list[Secret]:
    """Return one secret, or several, as a list; `ConfigError` where one is none."""
    found = [secrets] if isinstance(secrets, str | bytes) else list(secrets)
    for each in found:
        if not isinstance(each, str | bytes) or not each:
            raise ConfigError("secret", "a text or bytes, or several", type(each).__name__)
    return found


def signers(secrets: Secret | Sequence[Secret]) -> list[Signer]:
    """Return what signs; `whsk_…` is an Ed25519 private key, else it is of HMAC.

    Raises:
        ConfigError: a secret is no base64, or no key of its size.
        MissingExtraError: Ed25519 needs the package cryptography.

    """
    return [_signer(each) for each in secrets_of(secrets)]


def verifiers(secrets: Secret | Sequence[Secret]) -> list[Verifier]:
    """Return what checks; `whpk_…` is an Ed25519 public key, else as `signers`."""
    return [_verifier(each) for each in secrets_of(secrets)]


def content_of(message_id: str, timestamp: int | str, body: bytes) -> bytes:
    """Return what is signed."""
    return b"%s.%s.%s" % (message_id.encode(), str(timestamp).encode(), body)


def signature_header(keys: Iterable[Signer], content: bytes) -> str:
    """Return the value of `webhook-signature`."""
    return " ".join(f"{v},{base64.b64encode(sign(content)).decode()}" for v, sign in keys)


def github_signature(secret: Secret, body: bytes) -> str:
    """Return the value of GitHub's `X-Hub-Signature-256`."""
    return "sha256=" + hmac.new(bytes_of(secret), body, hashlib.sha256).hexdigest()


def bytes_of(secret: Secret) -> bytes:
    """Return a secret that is any text, in UTF-8."""
    return secret if isinstance(secret, bytes) else secret.encode()


def is_signed(keys: Sequence[Verifier], header: str, content: bytes) -> bool:
    """Whether one of the header's signatures is by one of the keys.

    All are looked at, so that the time taken shows no key.
    """
    is_good = False
    for each in header.split(" ")[:SIGNATURES_MAX]:
        version, _, text = each.partition(",")
        try:
            signature = base64.b64decode(text, validate=True)
        except ValueError:
            continue
        for known, accepts in keys:
            is_good |= known == version and accepts(signature, content)
    return is_good


def _signer(secret: Secret) -> Signer:
    if isinstance(secret, str) and secret.startswith(_PRIVATE):
        data = _decoded(secret, _PRIVATE, 32, 64)
        return "v1a", _ed25519().Ed25519PrivateKey.from_private_bytes(data[:32]).sign
    return "v1", partial(hmac.digest, _hmac_secret(secret), digest="sha256")


def _verifier(secret: Secret) -> Verifier:
    if isinstance(secret, str) and secret.startswith(_PUBLIC):
        data = _decoded(secret, _PUBLIC, 32)
        return "v1a", partial(_is_by, _ed25519().Ed25519PublicKey.from_public_bytes(data))
    _, sign = _signer(_hmac_secret(secret))
    return "v1", lambda given, content: hmac.compare_digest(sign(content), given)


def _is_by(key: Any, signature: bytes, content: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, content)
    except InvalidSignature:
        return False
    return True


def _hmac_secret(secret: Secret) -> bytes:
    """Return what the package `standardwebhooks` takes; a key of Ed25519 is no secret to it."""
    if isinstance(secret, bytes):
        return secret
    if secret.startswith((_PRIVATE, _PUBLIC)):
        limit = f"{_HMAC}… or {_PRIVATE}… to sign, {_HMAC}… or {_PUBLIC}… to verify"
        raise ConfigError("secret", limit, secret[: len(_HMAC)] + "…")
    return _decoded(secret, _HMAC)


def _decoded(text: str, prefix: str, *sizes: int) -> bytes:
    """Decode as `standardwebhooks` does: padding may be missing, and other characters be there."""
    try:
        data = base64.b64decode(text.removeprefix(prefix) + "==")
    except ValueError:
        data = b""
    if len(data) not in sizes if sizes else not data:
        size = f" of {' or '.join(map(str, sizes))} bytes" if sizes else ""
        raise ConfigError("secret", f"{prefix} and base64{size}", f"{len(text)} characters")
    return data


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise MissingExtraError("an Ed25519 secret", str(error.name), "webhooks") from error
    return ed25519


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
    _check_any(_hmacs(secrets, body), [given.removeprefix("sha256=")])
    return Proof(
        _checked_id(headers.get("x-github-delivery", "")), headers.get("x-github-event", "")
    )


def _stripe(secrets: Sequence[bytes], headers: Mapping[str, str], body: bytes, now: float) -> Proof:
    given = headers.get("stripe-signature", "").split(",")[: SIGNATURES_MAX + 2]
    pairs = [part.strip().partition("=") for part in given]
    stamp = next((value for name, _, value in pairs if name == "t"), "")
    signatures = [value for name, _, value in pairs if name == "v1"]
    if not (stamp and signatures):
        raise RejectedError(401, "unsigned", "Stripe-Signature is missing, or has no t and v1")
    content = stamp.encode(errors="replace") + b"." + body
    _check_any(_hmacs(secrets, content), signatures)
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
    _check_any(tokens, [given.strip()])
    return Proof(_checked_id(headers.get("webhook-id", "")))


def _check_any(known: Iterable[bytes], given: Iterable[str]) -> None:
    """Refuse where none is given that is known; all are looked at: the time taken shows nothing."""
    theirs = [each.encode(errors="replace") for each in given]
    if not sum(hmac.compare_digest(own, each) for own in known for each in theirs):
        raise RejectedError(401, "signature", "no signature or token fits")


def _hmacs(secrets: Sequence[bytes], content: bytes) -> list[bytes]:
    return [hmac.new(each, content, hashlib.sha256).hexdigest().encode() for each in secrets]


def _check_time(stamp: str, now: float) -> None:
    if not (stamp.isascii() and stamp.isdecimal() and len(stamp) <= 12):
        raise RejectedError(400, "time", "the timestamp is no number of seconds")
    if abs(int(stamp) - now) > _TOLERANCE_S:
        raise RejectedError(401, "time", f"the timestamp is not within {_TOLERANCE_S} s of now")


def _checked_id(request_id: str) -> str:
    if len(request_id) > _ID_MAX:
        raise RejectedError(400, "id", f"the id is longer than {_ID_MAX} characters")
    return request_id
