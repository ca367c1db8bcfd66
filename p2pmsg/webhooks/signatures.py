"""Standard Webhooks' signatures: HMAC-SHA256 (`v1`) and Ed25519 (`v1a`).

What is signed is `ID.TIMESTAMP.BODY`. The header has one signature for each secret, separated by
spaces, so that a secret can be replaced without a moment in which nothing fits.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from p2pmsg.errors import ConfigError, MissingExtraError

OUT_SCHEMES: Final = ("standard", "github")
"""How requests can be signed that are sent."""
SIGNATURES_MAX: Final = 16
"""How many signatures of a header are looked at; Ed25519 takes 0.1 ms for each."""
_HMAC, _PRIVATE, _PUBLIC = "whsec_", "whsk_", "whpk_"
Secret = str | bytes
"""A secret as text, in base64 where the scheme has that; or as its bytes."""


class Signer(Protocol):
    """A secret with which content is signed."""

    def sign(self, content: bytes) -> str:
        """Return the signature, as it stands in the header."""


class Verifier(Protocol):
    """A secret, or a public key, by which a signature is checked."""

    def accepts(self, version: str, signature: str, content: bytes) -> bool:
        """Whether it is a signature of the content with this secret."""


class HmacSecret:
    """A secret that both sides have."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, content: bytes) -> str:
        """Return `v1,` and the signature."""
        digest = hmac.digest(self._secret, content, hashlib.sha256)
        return f"v1,{base64.b64encode(digest).decode()}"

    def accepts(self, version: str, signature: str, content: bytes) -> bool:
        """Whether it is a signature of the content; takes as long whatever is wrong."""
        own = self.sign(content).partition(",")[2]
        return version == "v1" and hmac.compare_digest(own.encode(), signature.encode())


class PrivateKey:
    """An Ed25519 key, of which the receiver has the public half."""

    def __init__(self, key: Any) -> None:
        self._key = key

    def sign(self, content: bytes) -> str:
        """Return `v1a,` and the signature."""
        return f"v1a,{base64.b64encode(self._key.sign(content)).decode()}"

    @property
    def public(self) -> str:
        """The public key, as receivers are given it: `whpk_…`."""
        return _PUBLIC + base64.b64encode(self._key.public_key().public_bytes_raw()).decode()


class PublicKey:
    """The public half of an Ed25519 key."""

    def __init__(self, key: Any) -> None:
        self._key = key

    def accepts(self, version: str, signature: str, content: bytes) -> bool:
        """Whether it is a signature of the content."""
        from cryptography.exceptions import InvalidSignature

        try:
            if version == "v1a":
                self._key.verify(base64.b64decode(signature, validate=True), content)
                return True
        except (InvalidSignature, binascii.Error, ValueError):
            pass
        return False


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
    """Return what checks signatures; `whpk_…` is an Ed25519 public key, else it is of HMAC.

    Raises:
        ConfigError: a secret is no base64, or no key of its size.
        MissingExtraError: Ed25519 needs the package cryptography.

    """
    return [_verifier(each) for each in secrets_of(secrets)]


def content_of(message_id: str, timestamp: int | str, body: bytes) -> bytes:
    """Return what is signed."""
    return b"%s.%s.%s" % (message_id.encode(), str(timestamp).encode(), body)


def signature_header(keys: Iterable[Signer], content: bytes) -> str:
    """Return the value of `webhook-signature`."""
    return " ".join(key.sign(content) for key in keys)


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
        version, _, signature = each.partition(",")
        for key in keys:
            is_good |= key.accepts(version, signature, content)
    return is_good


def _signer(secret: Secret) -> Signer:
    if isinstance(secret, str) and secret.startswith(_PRIVATE):
        data = _decoded(secret, _PRIVATE, 32, 64)
        return PrivateKey(_ed25519().Ed25519PrivateKey.from_private_bytes(data[:32]))
    return _hmac_secret(secret)


def _verifier(secret: Secret) -> Verifier:
    if isinstance(secret, str) and secret.startswith(_PUBLIC):
        data = _decoded(secret, _PUBLIC, 32)
        return PublicKey(_ed25519().Ed25519PublicKey.from_public_bytes(data))
    return _hmac_secret(secret)


def _hmac_secret(secret: Secret) -> HmacSecret:
    """Return what the package `standardwebhooks` takes; a key of Ed25519 is no secret to it."""
    if isinstance(secret, str):
        if secret.startswith((_PRIVATE, _PUBLIC)):
            limit = f"{_HMAC}… or {_PRIVATE}… to sign, {_HMAC}… or {_PUBLIC}… to verify"
            raise ConfigError("secret", limit, secret[: len(_HMAC)] + "…")
        secret = _decoded(secret, _HMAC)
    return HmacSecret(secret)


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
