"""Name and tags of a metric as one text."""

TAGS_MARK = "|#"
"""Between name and tags in a key; neither has a bar of its own in a dialect that splits at bars."""


def make_key(name: str, tags: tuple[str, ...]) -> str:
    """Return what stands for name and tags: tags in one order, each once."""
    return f"{name}{TAGS_MARK}{','.join(sorted(set(tags)))}" if tags else name


def split_key(key: str) -> tuple[str, tuple[str, ...]]:
    """Return name and tags of a key."""
    name, mark, tags = key.partition(TAGS_MARK)
    return name, tuple(tags.split(",")) if mark else ()
