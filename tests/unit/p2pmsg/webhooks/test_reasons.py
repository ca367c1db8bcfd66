"""Why a request failed: nothing of the URL's path and query is in it."""

import ssl
from types import SimpleNamespace

import pytest

pytest.importorskip("aiohttp", reason="webhooks out need aiohttp (extra webhooks)")

import aiohttp
from aiohttp import client_exceptions, http_exceptions

from p2pmsg.webhooks.client import reason_of

URL = "https://a.example.com/services/T0KEN/pa%20ss%2fw%26%C3%B6rd?key=S3CRET&l0ne&n=12"


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
        said = reason_of(error, 20.0)
        assert not [word for word in ("T0KEN", "S3CRET", "l0ne", "%", "services") if word in said]
        assert said.startswith((type(error).__name__, "no answer within 20 s"))
    assert count > 30
