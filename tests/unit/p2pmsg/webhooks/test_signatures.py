"""Signatures of Standard Webhooks, against their own library where it is installed."""

import base64
import datetime

import pytest

from p2pmsg.errors import ConfigError
from p2pmsg.webhooks.signatures import (
    content_of,
    is_signed,
    signature_header,
    signers,
    verifiers,
)

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + base64.b64encode(bytes(range(24))).decode()
PRIVATE = "whsk_" + base64.b64encode(bytes(range(32))).decode()
PUBLIC = "whpk_A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg="


def test_the_example_of_the_specification():
    content = content_of("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert signature_header(signers(SECRET), content) == expected
    assert is_signed(verifiers(SECRET), expected, content)


def test_both_secrets_sign_while_one_is_replaced():
    header = signature_header(signers([SECRET, OTHER]), b"content")
    assert len(header.split()) == 2
    for secret in (SECRET, OTHER):
        assert is_signed(verifiers(secret), header, b"content")
    assert is_signed(verifiers([OTHER, SECRET]), signature_header(signers(SECRET), b"x"), b"x")


@pytest.mark.parametrize(
    "header",
    ["", "v1", "v1,", "v1,AAAA", "v1a,AAAA", "v2,x", "v1,é", "v1a,\xff", " ", "v1,x " * 1000],
)
def test_what_is_no_signature_is_refused(header):
    assert not is_signed(verifiers(SECRET), header, b"content")


def test_ed25519_signs_and_the_public_key_checks():
    pytest.importorskip("cryptography", reason="Ed25519 needs cryptography (extra webhooks)")
    header = signature_header(signers(PRIVATE), b"content")
    assert header.startswith("v1a,")
    public = verifiers(PUBLIC)
    assert is_signed(public, header, b"content")
    assert not is_signed(public, header, b"other")
    assert not is_signed(public, "v1a,AAAA v1a,é", b"content")
    assert not is_signed(verifiers(SECRET), header, b"content")


TAKEN = [
    SECRET, SECRET[6:], SECRET + "====", "whsec_AAE", "AAE=", "AA E\n=", "AA-E", "abc",
    base64.b64encode(bytes(1000)).decode(), b"raw bytes", b"\0", "my secret phrase", "whsec_AAAA",
]  # fmt: skip


@pytest.mark.parametrize("secret", TAKEN)
def test_what_the_library_of_standard_webhooks_takes_signs_here_as_it_does_there(secret):
    library = pytest.importorskip("standardwebhooks", reason="needs standardwebhooks from PyPI")
    now = datetime.datetime.fromtimestamp(1614265330, datetime.UTC)
    theirs = library.Webhook(secret).sign("msg_1", now, "{}")
    content = content_of("msg_1", 1614265330, b"{}")
    assert signature_header(signers(secret), content) == theirs
    assert is_signed(verifiers([OTHER, secret]), theirs, content)


@pytest.mark.parametrize("secret", ["", b"", "whsec_", "a", "whsec_AAAAA", "=", "whsec_é"])
def test_what_the_library_of_standard_webhooks_refuses_is_refused(secret):
    library = pytest.importorskip("standardwebhooks", reason="needs standardwebhooks from PyPI")
    with pytest.raises((ValueError, library.webhooks.EmptyWebhookSecretError)):
        library.Webhook(secret)
    with pytest.raises(ConfigError, match="secret must be"):
        signers(secret)


@pytest.mark.parametrize(("make", "text"), [(signers, "whpk_" + "A" * 43), (verifiers, PRIVATE)])
def test_a_key_for_the_other_side_is_refused(make, text):
    with pytest.raises(ConfigError, match=r"secret must be .*, not 'whs?p?k_.?…'") as raised:
        make(text)
    assert text not in str(raised.value)
