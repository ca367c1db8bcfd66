"""Why a request failed: nothing of the URL's path and query, nor of a header, is in it."""

import html
import json
import ssl
from types import SimpleNamespace
from urllib.parse import quote, quote_plus

import pytest

pytest.importorskip("aiohttp", reason="webhooks out need aiohttp (extra webhooks)")

import aiohttp
from aiohttp import client_exceptions, http_exceptions

from p2pmsg.webhooks import Endpoint
from p2pmsg.webhooks.client import Reasons

TOKENS = ("T0KEN", "pa ss/w&örd", "S3CRET", "l0ne", "b3arer")
URL = "https://a.example.com/services/T0KEN/pa%20ss%2fw%26%C3%B6rd?key=S3CRET&l0ne&n=12"
REASONS = Reasons(Endpoint(URL, headers={"Authorization": "Bearer b3arer"}))


def descendants(kind):
    return {kind}.union(*map(descendants, kind.__subclasses__()))


def errors():
    """Yield errors of all of aiohttp's classes, each with the URL wherever a text may be."""
    modules = (client_exceptions, http_exceptions)
    known = [each for module in modules for each in vars(module).values()]
    found = {each for each in known if isinstance(each, type) and issubclass(each, Exception)}
    found |= descendants(aiohttp.ClientError) | descendants(http_exceptions.HttpProcessingError)
    found = {each for each in found if each.__module__.startswith("aiohttp.")}
    request = aiohttp.RequestInfo(aiohttp.typedefs.URL(URL), "POST", {}, aiohttp.typedefs.URL(URL))
    key = SimpleNamespace(host="a.example.com", port=443, ssl=True, is_ssl=True)
    for kind in sorted(found, key=lambda each: each.__name__):
        if issubclass(kind, aiohttp.ClientResponseError):
            yield kind(request, (), status=400, message=f"bad: {URL}")
        elif issubclass(kind, client_exceptions.UnixClientConnectorError):
            yield kind(URL, key, OSError(None, URL))
        elif issubclass(kind, aiohttp.ClientConnectorCertificateError):
            yield kind(key, ssl.SSLCertVerificationError(1, f"bad: {URL}"))
        elif issubclass(kind, aiohttp.ClientConnectorError):
            yield kind(key, OSError(None, f"bad: {URL}"))
        elif issubclass(kind, aiohttp.ServerFingerprintMismatch):
            yield kind(URL.encode(), URL.encode(), URL, 443)
        elif issubclass(kind, http_exceptions.LineTooLong):
            yield kind(URL, 8190, "9000")
        elif kind is http_exceptions.HttpProcessingError:
            yield kind(message=URL)
        else:
            yield kind(URL)
    yield aiohttp.InvalidURL(URL, f"bad: {URL}")
    yield aiohttp.ClientOSError(None, f"Can not write request body for {URL}")
    yield from (ValueError(URL), OSError(URL), OSError(None, URL), ssl.SSLError(1, URL))


def test_no_error_shows_the_url():
    count = 0
    for count, error in enumerate(errors(), 1):  # noqa: B007
        said = REASONS.of_error(error)
        assert not [token for token in (*TOKENS, "%", "services") if token in said]
        assert said.startswith((type(error).__name__, "no answer within 20 s"))
    assert count > 30


def percent_all(text):
    return "".join(f"%{octet:02x}" for octet in text.encode())


FORMS = [
    str, str.upper, quote, quote_plus, percent_all, html.escape, json.dumps, repr,
    lambda text: quote(quote(text, safe="")),
    lambda text: repr(text.encode()),
    lambda text: json.dumps(json.dumps(text)),
    lambda text: json.dumps(text).replace("/", r"\/"),
    lambda text: "".join(f"&#{ord(each)};" for each in text),
    lambda text: "".join(f"&#x{ord(each):X};" for each in text),
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("token", TOKENS)
def test_a_token_is_hidden_in_each_form(form, token):
    said = REASONS.short(f"Cannot POST /x/{form(token)} here, nor {form(token)}.")
    assert said.replace('"', "").replace("'", "").replace("b", "").replace("\\", "") == (
        "Cannot POST /x/*** here, nor ***."
    )


def test_the_url_as_a_whole_is_hidden_where_an_answer_repeats_it():
    path = URL.removeprefix("https://a.example.com")
    assert REASONS.short(f"Cannot POST {path}") == "Cannot POST /***/***/***?key=***&***&n=12"


def test_a_token_that_is_cut_off_is_hidden():
    reasons = Reasons(Endpoint("https://a.example.com/" + "abcdefgh" * 1000))
    assert reasons.short("no " + "abcdefgh" * 1000) == "no ***"
    assert reasons.short("no abcdefghabc") == "no ***"
    assert reasons.short("no abc") == "no abc"
