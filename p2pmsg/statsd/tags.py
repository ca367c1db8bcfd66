"""Tags within names: Influx, Librato, Graphite and SignalFx write them there."""

from p2pmsg.statsd.metric import LineError

_MARKS = {"librato": "#", "influx": ",", "graphite": ";"}


def split_list(text: str, *, strip_marks: bool = False) -> tuple[str, ...]:
    """Return DogStatsD's tags `a:b,c`; empty ones are left out."""
    tags = text.split(",")
    if strip_marks:
        tags = [tag.removeprefix("#") for tag in tags]
    return tuple(tag for tag in tags if tag)


def split_name(name: str, styles: frozenset[str]) -> tuple[str, tuple[str, ...]]:
    """Return the name proper and the tags `key:value` in it.

    Raises:
        LineError: a tag without a key.

    """
    if "signalfx" in styles and ("[" in name or "]" in name):
        return _split_brackets(name)
    marks = {_MARKS[style]: style for style in styles if style in _MARKS}
    for index, character in enumerate(name):
        style = marks.get(character)
        if style is not None:
            rest = name[index + 1 :]
            if style == "graphite":  # a comma would be the end of a tag in a metric's key
                return name[:index], _pairs(rest.replace(",", "_").split(";"))
            return name[:index], _pairs(rest.split(","))
    return name, ()


def _split_brackets(name: str) -> tuple[str, tuple[str, ...]]:
    start, end = name.find("["), name.find("]")
    if start < 0 or end < start:
        return name, ()  # a lone bracket: whose commas are whose, nobody can say
    return name[:start] + name[end + 1 :], _pairs(name[start + 1 : end].split(","))


def _pairs(parts: list[str]) -> tuple[str, ...]:
    tags = []
    for part in parts:
        key, equals, value = part.partition("=")
        if not key and equals:
            raise LineError("bad_tags")
        if key:
            tags.append(f"{key}:{value}" if equals else key)
    return tuple(tags)
