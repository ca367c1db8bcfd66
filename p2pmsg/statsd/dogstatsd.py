"""DogStatsD's events and service checks.

Source: DataDog's "DogStatsD datagram format". Metadata that does not parse is left out, as their
agent does, since the event itself is still worth having.
"""

import re
from typing import Any

from p2pmsg.statsd.metric import Event, LineError, ServiceCheck
from p2pmsg.statsd.tags import split_list

_HEADER = re.compile(r"_e\{([0-9]{1,7}),([0-9]{1,7})\}:")
_ALERTS = ("error", "warning", "info", "success")
_PRIORITIES = ("normal", "low")


def parse_event(line: bytes) -> Event:
    r"""Parse `_e{title length,text length}:title|text|…`.

    The lengths are counted in bytes of UTF-8 (DataDog's clients) or, where that does not fit, in
    characters; `\n` in the text is a line break.

    Raises:
        LineError: lengths that do not fit, or an empty title.

    """
    text = line.decode()
    header = _HEADER.match(text)
    if header is None:
        raise LineError("bad_event")
    title_length, text_length = int(header[1]), int(header[2])
    body = line[header.end() :]  # the header is ASCII
    parts = _cut(body, title_length, text_length)
    if parts is None:
        characters = _cut(body.decode(), title_length, text_length)
        if characters is None:
            raise LineError("bad_event")
        title, content, rest = characters
    else:
        try:
            title, content, rest = (part.decode() for part in parts)
        except UnicodeDecodeError:
            raise LineError("bad_event") from None
    if not title:
        raise LineError("bad_event")
    fields: dict[str, Any] = {}
    for section in rest.split("|"):
        _read_event_section(section, fields)
    return Event(title=title, text=content.replace("\\n", "\n"), **fields)


def _cut(body: Any, title_length: int, text_length: int) -> tuple[Any, Any, Any] | None:
    bar = body[:0] + (b"|" if isinstance(body, bytes) else "|")
    text_start = title_length + 1
    end = text_start + text_length
    if body[title_length:text_start] != bar or len(body) < end:
        return None
    if len(body) > end and body[end : end + 1] != bar:
        return None
    return body[:title_length], body[text_start:end], body[end + 1 :]


def _read_event_section(section: str, fields: dict[str, Any]) -> None:
    if section.startswith("#"):
        fields["tags"] = split_list(section[1:])
        return
    mark, colon, value = section.partition(":")
    if not colon:
        return
    if mark == "d" and _is_seconds(value):
        fields["timestamp_s"] = int(value)
    elif mark == "p" and value in _PRIORITIES:
        fields["priority"] = value
    elif mark == "t" and value in _ALERTS:
        fields["alert_type"] = value
    elif mark in _EVENT_TEXTS:
        fields[_EVENT_TEXTS[mark]] = value


_EVENT_TEXTS = {"h": "hostname", "k": "aggregation_key", "s": "source_type", "c": "container"}


def parse_service_check(line: bytes) -> ServiceCheck:
    r"""Parse `_sc|name|status|…`; `m:` comes last and may hold bars; `m\:` in it is `m:`.

    Raises:
        LineError: no name, or a status that is not 0, 1, 2 or 3.

    """
    sections = line.decode().split("|")
    if len(sections) < 3 or not sections[1] or sections[2] not in ("0", "1", "2", "3"):
        raise LineError("bad_service_check")
    fields: dict[str, Any] = {}
    for index, section in enumerate(sections[3:], 3):
        if section.startswith("m:"):
            message = "|".join(sections[index:])[2:]
            fields["message"] = message.replace("m\\:", "m:").replace("\\n", "\n")
            break
        if section.startswith("#"):
            fields["tags"] = split_list(section[1:])
        elif section.startswith("d:") and _is_seconds(section[2:]):
            fields["timestamp_s"] = int(section[2:])
        elif section.startswith("h:"):
            fields["hostname"] = section[2:]
        elif section.startswith("c:"):
            fields["container"] = section[2:]
    return ServiceCheck(name=sections[1], status=int(sections[2]), **fields)


def _is_seconds(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 12
