"""Standard Webhooks' signatures: HMAC-SHA256 (`v1`) and Ed25519 (`v1a`).

What is signed is `ID.TIMESTAMP.BODY`. The header has one signature for each secret, separated by
spaces, so that a secret can be replaced without a moment in which nothing fits.

The package `standardwebhooks` reads no bodies that are not UTF-8 (CloudEvents of bytes, JSON in
UTF-16), takes one secret, knows no Ed25519, and reads the clock; so it only checks ours in tests.
"""

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from p2pmsg.errors import ConfigError, MissingExtraError

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
