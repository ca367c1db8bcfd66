"""What is in a body, by its content type; what cannot be is refused, and it is said where."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmsg.http.asgi import RejectedError, json_of, value_of


def of(kind, body, *errors):
    return value_of({"content-type": kind}, body, *errors)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"a": "NaN", "b": NaN}', "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ("1" * 400 + ".0", f"{'1' * 40}… is larger than a float can be"),
        ("{", "Expecting property name"),
        ("", "Expecting value: line 1 column 1 (char 0)"),
        ("[" * 100_000, "recursion"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_what_json_does_not_have_is_refused_at_its_place(body, said, encoding):
    if body or encoding == "utf-8":
        with pytest.raises(RejectedError, match=re.escape(said)) as refused:
            of("application/json; charset=utf-8", body.encode(encoding))
        assert str(refused.value).startswith("the body is no application/json: ")
        assert (refused.value.status, refused.value.why) == (400, "body")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text()
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda part: st.lists(part) | st.dictionaries(st.text(), part),
        max_leaves=20,
    )
)  # fmt: skip
def test_other_json_is_read_as_it_was(value):
    for encoding in ("utf-8", "utf-16"):
        for is_ascii in (True, False):
            body = json.dumps(value, ensure_ascii=is_ascii).encode(encoding, "surrogatepass")
            assert json_of(body) == value


@pytest.mark.parametrize(
    "charset", ["nonsense", "zlib", "hex", "rot13", "punycode", "unicode_escape", "../x", "é" * 300]
)
@pytest.mark.parametrize("errors", ["strict", "replace"])
def test_a_charset_that_is_not_known_is_named(charset, errors):
    with pytest.raises(RejectedError, match=f"the charset '{charset[:40]}.* is not known") as no:
        of(f"text/plain; charset={charset}", b"61", errors)
    assert (no.value.status, no.value.why) == (415, "charset")


def test_bytes_that_a_charset_does_not_have_are_refused_or_replaced():
    for kind, body in (("text/plain", b"a\xff"), ("text/plain; charset=ascii", b"a\xe9")):
        with pytest.raises(RejectedError, match="the body is no text/plain: ") as refused:
            of(kind, body)
        assert refused.value.status == 400
        assert of(kind, body, "replace") == "a\ufffd"
