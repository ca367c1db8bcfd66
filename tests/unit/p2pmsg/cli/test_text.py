import math

import pytest

from p2pmsg.cli.pubsub import reader
from p2pmsg.cli.text import bytes_text, span_text, value_text

TEXTS = {
    "text": ("hello", "hello"),
    "bytes that are text": ("grüße".encode(), "grüße"),
    "bytes that are not": (b"\xff\x00", "base64:/wA="),
    "no bytes": (b"", ""),
    "int": (7, "7"),
    "float": (2.5, "2.5"),
    "nan": (float("nan"), "null"),
    "none": (None, "null"),
    "bool": (True, "true"),
    "dict": ({"a": [1, "ü"]}, '{"a":[1,"ü"]}'),
    "text with a line break": ("a\nb", "a\nb"),
}


@pytest.mark.parametrize(("value", "text"), TEXTS.values(), ids=TEXTS)
def test_a_value_is_printed(value, text):
    assert value_text(value) == text


def test_a_terminal_is_not_sent_control_characters():
    assert value_text(b"a\x1b[2J\tb", to_terminal=True) == "a\\x1b[2J\tb"


BYTES = {
    0: "0 B", 999: "999 B", 1000: "1 kB", 1536: "1.54 kB", 999_999: "1 MB", 5e11: "500 GB",
    123.4: "123 B",
}  # fmt: skip


@pytest.mark.parametrize(("count", "text"), BYTES.items(), ids=map(str, BYTES))
def test_bytes_for_people(count, text):
    assert bytes_text(count) == text


SPANS = {
    0: "0 s", 0.25: "0.25 s", 59.6: "1 min", 61: "1 min 1 s", 3600: "1 h", 90_000: "1 d 1 h",
    86_400 * 400: "400 d", 86_401: "1 d", math.inf: "for ever", 86_400 * 36_525: "100 years",
}  # fmt: skip


@pytest.mark.parametrize(("seconds", "text"), SPANS.items(), ids=map(str, SPANS))
def test_spans_for_people(seconds, text):
    assert span_text(seconds) == text


LINES = {
    "plain": ((False, None), b"a b", (b"a b", None)),
    "plain with key": ((False, "s"), b'{"s":"X"}', (b'{"s":"X"}', "X")),
    "json": ((True, None), b"[1,2]", ([1, 2], None)),
    "json with key": ((True, "s"), b'{"s":"X"}', ({"s": "X"}, "X")),
    "key is a number": ((True, "s"), b'{"s":7}', ({"s": 7}, "7")),
}


@pytest.mark.parametrize(("how", "line", "read"), LINES.values(), ids=LINES)
def test_a_line_becomes_a_value_and_a_key(how, line, read):
    assert reader(*how)(line) == read


BAD_LINES = {
    "no json": ((True, None), b"{", "is not JSON"),
    "an empty line": ((True, None), b"", "is not JSON"),
    "no utf-8": ((True, None), b'"\xff"', "is not JSON"),
    "no object": ((False, "s"), b"[1]", "no JSON object"),
    "no such field": ((True, "s"), b'{"a":1}', "'s'"),
    "key is null": ((True, "s"), b'{"s":null}', "None"),
    "key is a bool": ((True, "s"), b'{"s":true}', "True"),
}


@pytest.mark.parametrize(("how", "line", "names"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_line_that_cannot_be_read_says_why(how, line, names):
    with pytest.raises(ValueError, match=r"JSON|field") as caught:
        reader(*how)(line)

    assert names in str(caught.value)
