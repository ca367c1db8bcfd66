"""Who may what: rules by peer, verb and topic, and the one function that decides. Pure.

::

    [peers]
    bars-1 = "KEY"                        # names of keys, in addition to known_peers

    [[rule]]
    who = ["bars-*"]                      # names, or prefixes of names
    subscribe = ["trades", "quotes*"]     # topics, or prefixes of topics
    replay_max = "1h"                     # of what these patterns allow: how old it may be

    [[rule]]
    who = ["*"]
    deny = true
    subscribe = ["quotes.internal*"]

How rules combine, and nothing else counts, not even their order:

1. What no rule gives is denied.
2. What any rule with `deny = true` names is denied, whatever other rules give.
3. Rules that give add up: where several do, the one with the longest `replay_max` decides, and one
   without it sets no limit.

A prefix is allowed only if one pattern of a rule that gives covers all of it, and nothing of it is
denied: so all topics that begin with it are allowed.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final

from p2pmsg.errors import ConfigError
from p2pmsg.security.files import read_own_file
from p2pmsg.security.trust import NAME_CHARACTERS_MAX, check_name, parse_public
from p2pmsg.wire import TOPIC_BYTES_MAX

VERBS: Final[tuple[str, ...]] = (
    "subscribe", "publish", "relay", "push", "pull", "request", "respond", "admin",
)  # fmt: skip
"""What there are rights to; each has patterns of topics, methods or names of queues."""
RULES_MAX: Final = 10_000
_UNITS_S: Final = {"": 1, "s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SPAN: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([a-z]*)")
_FOREVER_S: Final = 10**9
_SETTINGS: Final = ("who", "deny", "replay_max")
_WHO: Final = re.compile(rf"[A-Za-z0-9._@-]{{0,{NAME_CHARACTERS_MAX}}}\*?")
_A_PATTERN: Final = f"a topic of 1 to {TOPIC_BYTES_MAX} bytes, or a prefix and one * at its end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One `[[rule]]` of an access file."""

    number: int
    """Its place in the file; the first is 1."""

    who: tuple[str, ...]
    """Names of peers, and prefixes of names, followed by `*`."""

    verbs: dict[str, tuple[str, ...]]
    """By verb, topics, and prefixes of topics, followed by `*`."""

    deny: bool = False
    """Whether it takes, and does not give."""

    replay_max_ns: int | None = None
    """How old what is replayed may be, in ns; None: as old as there is."""

    def __str__(self) -> str:
        return f"rule {self.number}"


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether somebody may do something, and which rule says so. It is true where it is allowed."""

    rule: Rule | None = None
    """The rule that decided; None: no rule gives it."""

    pattern: str = ""
    """The pattern of that rule."""

    @property
    def allowed(self) -> bool:
        """Whether it is allowed."""
        return self.rule is not None and not self.rule.deny

    @property
    def replay_max_ns(self) -> int | None:
        """How old what is replayed may be, in ns; None: as old as there is."""
        return None if self.rule is None else self.rule.replay_max_ns

    def __bool__(self) -> bool:
        return self.allowed

    def __str__(self) -> str:
        if self.rule is None:
            return "denied: no rule gives it"
        if self.rule.deny:
            return f"denied: {self.rule} denies {self.pattern!r}"
        history = _history_text(self.rule.replay_max_ns)
        return f"allowed: {self.rule} gives {self.pattern!r}, {history}"


_DENIED: Final = Decision()


class _Patterns:
    """Patterns of topics, each with the entry that gives the most history."""

    __slots__ = ("_prefixes", "_topics")

    def __init__(self) -> None:
        self._topics: dict[bytes, Decision] = {}
        self._prefixes: dict[bytes, Decision] = {}

    def add(self, pattern: str, rule: Rule) -> None:
        entries = self._prefixes if pattern.endswith("*") else self._topics
        key, entry = pattern.removesuffix("*").encode(), Decision(rule, pattern)
        entries[key] = _most([entries.get(key), entry]) or entry

    def of_topic(self, topic: bytes) -> Decision | None:
        """Return the entry of those that name a topic which gives the most history."""
        return _most([self._topics.get(topic), self.over(topic)])

    def over(self, prefix: bytes) -> Decision | None:
        """Return the same of those that name all topics with a prefix."""
        return _most(self._prefixes.get(prefix[:size]) for size in range(len(prefix) + 1))

    def within(self, prefix: bytes) -> Decision | None:
        """Return an entry that names some topics with a prefix, or None."""
        every = chain(self._topics.items(), self._prefixes.items())
        return next((entry for key, entry in every if key.startswith(prefix)), None)


def _most(entries: Iterable[Decision | None]) -> Decision | None:
    """Return the first of those that give the most history."""
    return max((one for one in entries if one is not None), key=_history_ns, default=None)


def _history_ns(entry: Decision) -> float:
    limit_ns = entry.replay_max_ns
    return float("inf") if limit_ns is None else limit_ns


@dataclass(slots=True)
class _Grants:
    """What one peer is given and denied, by verb; and whether any rule limits its history."""

    gives: dict[str, _Patterns] = field(default_factory=dict)
    denies: dict[str, _Patterns] = field(default_factory=dict)
    is_limited: bool = False


_NOTHING: Final = _Patterns()
_GRANTS_MAX: Final = 4096


class Access:
    """The rules of one access file.

    Args:
        peers: keys by name, 32 bytes each.
        rules: in the order of the file.

    Attributes:
        peers, rules: as given.

    """

    def __init__(self, peers: dict[str, bytes], rules: Iterable[Rule]) -> None:
        self.peers = peers
        self.rules = tuple(rules)
        self._grants: dict[str, _Grants] = {}

    def decide(self, who: str, verb: str, topic: str) -> Decision:
        """Return whether `who` may; a topic that ends in `*` means all that begin so.

        Raises:
            ConfigError: there is no such verb.

        """
        _check_verb(verb)
        if topic.endswith("*"):
            return self._decide_prefix(who, verb, topic[:-1].encode(errors="replace"))
        return self._decide_topic(who, verb, topic.encode(errors="replace"))

    def has_any(self, who: str, verb: str) -> bool:
        """Return whether a rule gives `who` anything of a verb; a part of it may be denied."""
        return verb in self._of(who).gives

    def has_limit(self, who: str) -> bool:
        """Return whether a rule gives `who` only a part of the history of any topic."""
        return self._of(who).is_limited

    def covers(self, who: str, verb: str, prefix: bytes) -> Decision:
        """Return whether `who` may have all frames that begin with `prefix`, bytes of ZeroMQ's.

        A topic and a zero byte mean this topic. The empty prefix is denied, since it includes
        control frames, and so is what begins with a zero byte: those are no topic's.

        Raises:
            ConfigError: there is no such verb.

        """
        _check_verb(verb)
        topic, zero, _ = prefix.partition(b"\0")
        if not topic:
            return _DENIED
        decide = self._decide_topic if zero else self._decide_prefix
        return decide(who, verb, topic)

    def _decide_topic(self, who: str, verb: str, topic: bytes) -> Decision:
        grants = self._of(who)
        denies = grants.denies.get(verb, _NOTHING).of_topic(topic)
        gives = grants.gives.get(verb, _NOTHING).of_topic(topic)
        if not 0 < len(topic) <= TOPIC_BYTES_MAX or b"\0" in topic:
            gives = None  # it is no topic
        return _first(denies, gives)

    def _decide_prefix(self, who: str, verb: str, prefix: bytes) -> Decision:
        grants = self._of(who)
        denied = grants.denies.get(verb, _NOTHING)
        gives = grants.gives.get(verb, _NOTHING).over(prefix)
        if len(prefix) > TOPIC_BYTES_MAX or b"\0" in prefix:
            gives = None  # no topic begins so
        return _first(denied.over(prefix), denied.within(prefix), gives)

    def _of(self, who: str) -> _Grants:
        grants = self._grants.get(who)
        if grants is None:
            grants = _Grants()
            for rule in self.rules:
                if any(_fits(pattern, who) for pattern in rule.who):
                    grants.is_limited |= rule.replay_max_ns is not None
                    by_verb = grants.denies if rule.deny else grants.gives
                    for verb, patterns in rule.verbs.items():
                        for pattern in patterns:
                            by_verb.setdefault(verb, _Patterns()).add(pattern, rule)
            if len(self._grants) >= _GRANTS_MAX:
                self._grants = {}
            self._grants[who] = grants
        return grants


def _fits(pattern: str, who: str) -> bool:
    if pattern.endswith("*"):
        return bool(who) and who.startswith(pattern[:-1])
    return who == pattern


def _first(*entries: Decision | None) -> Decision:
    """Return the one that decides: what denies goes first."""
    return next((one for one in entries if one is not None), _DENIED)


def _check_verb(verb: str) -> None:
    if verb not in VERBS:
        raise ConfigError("verb", f"one of {', '.join(VERBS)}", verb)


def _history_text(replay_max_ns: int | None) -> str:
    if replay_max_ns is None:
        return "with all its history"
    if not replay_max_ns:
        return "without its history"
    return f"with {replay_max_ns / 1e9:,g} s of its history"


def load_access(path: str | Path) -> Access:
    """Read an access file.

    Raises:
        ConfigError: it is none; `field` says where it is wrong.
        OSError: it cannot be read.

    """
    return parse_access_file(path, read_own_file(path, "access"))


def parse_access_file(path: str | Path, data: bytes) -> Access:
    """Parse the content of an access file; errors name the file.

    Raises:
        ConfigError: it is none; `field` says where it is wrong.

    """
    name = f"access file {str(path)!r}"
    try:
        return parse_access(data.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(name, "UTF-8", data[error.start : error.start + 8]) from error
    except ConfigError as error:
        error.within(name)
        raise


def parse_access(text: str) -> Access:
    """Parse an access file's text.

    Raises:
        ConfigError: it is none; `field` says where it is wrong.

    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("TOML", "well-formed", str(error)) from error
    except RecursionError as error:
        raise ConfigError("TOML", "less deep", "arrays within arrays") from error
    except ValueError as error:  # an integer of thousands of digits
        raise ConfigError("TOML", "with numbers that can be read", str(error)) from error
    for key in data:
        if key not in ("peers", "rule"):
            raise ConfigError("entry", "[peers] or [[rule]]", key)
    rules = data.get("rule", [])
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise ConfigError("rule", "tables, each under [[rule]]", rules)
    if len(rules) > RULES_MAX:
        raise ConfigError("rules", f"at most {RULES_MAX:,}", len(rules))
    return Access(
        _parse_peers(data.get("peers", {})),
        [_parse_rule(rule, number) for number, rule in enumerate(rules, 1)],
    )


def _parse_peers(peers: Any) -> dict[str, bytes]:
    if not isinstance(peers, dict):
        raise ConfigError("peers", 'a table: name = "KEY"', peers)
    found: dict[str, bytes] = {}
    names: dict[bytes, str] = {}
    for name, text in peers.items():
        check_name("name in [peers]", name)
        key = parse_public(f"peers.{name}", text)
        if key in names:
            limit = "another key than that of another name"  # it is not shown either
            raise ConfigError(f"peers.{name}", limit, f"that of {names[key]}")
        found[name], names[key] = key, name
    return found


def _parse_rule(rule: dict[str, Any], number: int) -> Rule:
    def place(key: str = "") -> str:
        return f"rule {number}, {key}" if key else f"rule {number}"

    for key in rule:
        if key not in VERBS and key not in _SETTINGS:
            limit = f"{', '.join(_SETTINGS)} or a verb: {', '.join(VERBS)}"
            raise ConfigError(f"{place(key)}: the name of an entry", limit, key)
    if "who" not in rule:
        raise ConfigError(f"{place()}, who", 'given, as in who = ["bars-*"]', None)
    who = tuple(_strings(rule["who"], place("who")))
    for pattern in who:
        if not pattern or not _WHO.fullmatch(pattern):
            raise ConfigError(place("who"), "names, or prefixes and one * at their end", pattern)
    verbs = {verb: _parse_patterns(rule[verb], place(verb)) for verb in VERBS if verb in rule}
    if not verbs:
        raise ConfigError(place(), f"with a verb: {', '.join(VERBS)}", list(rule))
    deny = rule.get("deny", False)
    if not isinstance(deny, bool):
        raise ConfigError(place("deny"), "true or false", deny)
    replay_max_ns = None
    if "replay_max" in rule:
        replay_max_ns = _parse_span(rule["replay_max"], place("replay_max"))
        if deny or "subscribe" not in verbs:
            limit = "in a rule that gives subscribe only"
            raise ConfigError(place("replay_max"), limit, rule["replay_max"])
    return Rule(number=number, who=who, verbs=verbs, deny=deny, replay_max_ns=replay_max_ns)


def _strings(value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, list) or not value:
        raise ConfigError(where, 'a list of strings, as in ["trades", "quotes*"]', value)
    for each in value:
        if not isinstance(each, str):
            raise ConfigError(where, "strings", each)
        yield each


def _parse_patterns(value: Any, where: str) -> tuple[str, ...]:
    patterns = tuple(_strings(value, where))
    for pattern in patterns:
        name = pattern.removesuffix("*")
        size = len(name.encode(errors="replace"))
        if not pattern or size > TOPIC_BYTES_MAX or "*" in name or "\0" in name:
            raise ConfigError(where, _A_PATTERN, pattern)
    return patterns


def _parse_span(value: Any, where: str) -> int:
    limit = 'a time such as "90s", "30min", "24h", "7d", or a number of seconds, up to 1e9 s'
    seconds: Any = value
    if isinstance(value, str):
        found = _SPAN.fullmatch(value)
        if found is None or found[2] not in _UNITS_S:
            raise ConfigError(where, limit, value)
        seconds = float(found[1]) * _UNITS_S[found[2]]
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise ConfigError(where, limit, value)
    if not 0 <= seconds <= _FOREVER_S:  # NaN is neither
        raise ConfigError(where, limit, value)
    return round(seconds * 1e9)
