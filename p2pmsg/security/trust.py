"""The peers that one knows: a file with a line for each, read again when it changes.

::

    # NAME    KEY (public, 43 characters)                          ENDPOINTS where it binds
    prices    1kR-uX9f0q…                                          tcp://prices:5556 tcp://prices:*
    bars-1    mVv3oH2Tzk…

Who has a line may connect here. Where a peer is connected to at one of the endpoints, it has to
hold the key of that line: a port of `*` stands for all ports of the host.
"""

import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import transports
from p2pmsg.checks import checked
from p2pmsg.errors import AuthenticationError, ConfigError, translated
from p2pmsg.security.files import WatchedFile
from p2pmsg.security.keys import KEY_LINE, ready_folder
from recovery.durable import lock_file, replace_file, sync_path
from transports.curve import fingerprint, key_text, parse_key

NAME_CHARACTERS_MAX: Final = 64
_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@-]{{0,{NAME_CHARACTERS_MAX - 1}}}")
_HEAD: Final = "# NAME KEY [ENDPOINT ...]: see `p2pmsg trust`.\n"


@dataclass(frozen=True, slots=True)
class KnownPeer:
    """One line of the file."""

    name: str
    """1 to 64 of the characters A-Z a-z 0-9 . _ @ -, the first a letter or digit."""

    public: bytes
    """Its public key."""

    endpoints: tuple[transports.Endpoint, ...] = ()
    """Where it binds; port 0 stands for all ports of the host."""

    def __str__(self) -> str:
        return " ".join((self.name, key_text(self.public), *map(_place_text, self.endpoints)))


@dataclass(slots=True)
class _Peers:
    by_name: dict[str, KnownPeer] = field(default_factory=dict)
    by_key: dict[bytes, KnownPeer] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """By user id."""
    by_endpoint: dict[transports.Endpoint, KnownPeer] = field(default_factory=dict)

    def add(self, peer: KnownPeer) -> None:
        """Add a line; `ConfigError` where it contradicts another one."""
        if peer.name in self.by_name:
            raise ConfigError("name", "given once", peer.name)
        other = self.by_key.get(peer.public)
        if other is not None:
            raise ConfigError("key", f"another one than that of {other.name}", peer.name)
        for endpoint in peer.endpoints:
            holder = self.by_endpoint.get(endpoint)
            if holder is not None:
                limit = f"of one peer, and {holder.name} has it"
                raise ConfigError("endpoint", limit, _place_text(endpoint))
        self.by_name[peer.name] = self.by_key[peer.public] = peer
        self.names[key_text(peer.public)] = peer.name
        self.by_endpoint |= dict.fromkeys(peer.endpoints, peer)


class KnownPeers:
    """A file of known peers. Safe to use from several threads.

    A file that is not there is empty. One that became malformed, or cannot be read any more, is
    logged once, and what was read before stays.

    Args:
        path: of the file; `~` is the user's home.

    Raises:
        ConfigError: a line is malformed; `field` says which.
        OSError: it cannot be read.

    """

    @checked()
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.expanduser(path))
        self._lock = threading.Lock()
        self._file = WatchedFile(
            self.path, "trust", lambda data: parse_peers(data, str(self.path)), _Peers()
        )

    def peers(self) -> list[KnownPeer]:
        """Return all, in the order of the file."""
        return list(self._fresh().by_name.values())

    def names(self) -> dict[str, str]:
        """Return the name of each user id, the text of a key; another object after a change."""
        return self._fresh().names

    def of_endpoint(self, endpoint: transports.Endpoint) -> KnownPeer | None:
        """Return the peer that binds `endpoint`, or all ports of its host; or None."""
        found = self._fresh().by_endpoint
        place = replace(endpoint, options=())
        peer = found.get(place)
        if peer is None and place.scheme == "tcp":
            peer = found.get(place.with_port(0))
        return peer

    def add(
        self, name: str, key: str, endpoints: Sequence[str] = (), *, replace: bool = False
    ) -> KnownPeer:
        """Add a peer to the file, or endpoints to its line; the file is replaced as a whole.

        Args:
            name: of the peer.
            key: its public key, as text.
            endpoints: where it binds. Default: nothing is added.
            replace: whether a line with another key is replaced. Default False.

        Raises:
            ConfigError: an argument is wrong, or another peer has the key or an endpoint.
            AuthenticationError: the name has another key.
            OSError: the file cannot be written; it is as before.

        """
        new = parse_peer([name, key, *endpoints])
        with self._rewriting() as lines:
            holder = self._file.value.by_key.get(new.public)
            if holder is not None and holder.name != name:
                raise ConfigError("key", f"another one than that of {holder.name}", key)
            for index, line in enumerate(lines):
                known = _peer_of(line)
                if known is None or known.name != name:
                    continue
                if known.public != new.public and not replace:
                    raise AuthenticationError(name, changed_key(known.public, new.public))
                places = dict.fromkeys((*known.endpoints, *new.endpoints))
                new = KnownPeer(name, new.public, tuple(places))
                lines[index] = str(new)
                break
            else:
                lines.append(str(new))
        return new

    def remove(self, name: str) -> KnownPeer:
        """Remove the line of the peer `name`, and return it.

        Peers that use the file end its connections within two seconds, and refuse new ones.

        Raises:
            ConfigError: there is no such name.
            OSError: the file cannot be written; it is as before.

        """
        with self._rewriting() as lines:
            for index, line in enumerate(lines):
                known = _peer_of(line)
                if known is not None and known.name == name:
                    del lines[index]
                    return known
            raise ConfigError("name", f"one that {str(self.path)!r} has", name)

    @contextmanager
    def _rewriting(self) -> Iterator[list[str]]:
        """Give the lines of the file, and write what became of them; one at a time.

        A link stays one: what it leads to is written.
        """
        ready_folder(self.path.parent)
        path = self.path.resolve()
        with lock_file(f"{path}.lock"):
            with self._lock:
                self._file.read(again=True)
            before = self._file.content or b""
            lines = before.decode().splitlines() or [_HEAD.rstrip()]
            yield lines
            data = "\n".join([*lines, ""]).encode()
            parse_peers(data, str(self.path))
            mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
            replace_file(path, data, mode=mode)
            with suppress(PermissionError):
                sync_path(path.parent)
        self._fresh()

    def _fresh(self) -> _Peers:
        """Return what the file has, read again if it changed."""
        with self._lock:
            return self._file.check()


def parse_peers(data: bytes, path: str) -> _Peers:
    """Return the lines of a file; `ConfigError` names the first that is malformed."""
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError("trust", "a file of UTF-8", path) from error
    peers = _Peers()
    for number, line in enumerate(lines, 1):
        words = _words(line)
        if not words:
            continue
        try:
            peers.add(parse_peer(words))
        except ConfigError as error:
            error.within(f"{path}, line {number}")
            raise
    return peers


def changed_key(known: bytes, given: bytes) -> str:
    """Return the reason that a peer has another public key than the one that is known."""
    return f"its key has changed: {fingerprint(known)} is known, {fingerprint(given)} is given"


def check_name(field: str, name: str) -> None:
    """Raise `ConfigError` unless it may be the name of a peer."""
    if not _NAME.fullmatch(name):
        limit = (
            f"1 to {NAME_CHARACTERS_MAX} of the characters A-Z a-z 0-9 . _ @ -, the first a "
            "letter or digit"
        )
        raise ConfigError(field, limit, name[:100])


def parse_public(field: str, text: object) -> bytes:
    """Return a public key; `ConfigError` does not show what was read, for it may be a secret."""
    try:
        return parse_key(text)  # type: ignore[arg-type]
    except ValueError:
        limit = "a public key: 43 characters of base64url, as `p2pmsg key show` prints it"
        shown = f"{len(text)} characters" if isinstance(text, str) else type(text).__name__
        raise ConfigError(field, limit, shown) from None


def parse_peer(words: Sequence[str]) -> KnownPeer:
    """Return the peer of a line's words; `ConfigError` where they are malformed."""
    name, key, *places = [*words, "", ""][: max(2, len(words))]
    check_name("name", name)
    if name == KEY_LINE:  # a key file by mistake: its secret would be read, and printed
        raise ConfigError("name", "another one: a line of a key file begins so", name)
    public = parse_public("key", key)
    return KnownPeer(name, public, tuple(_parse_place(place) for place in places))


def _parse_place(text: str) -> transports.Endpoint:
    with translated():
        endpoint = transports.parse_endpoint(text)
    is_known = endpoint.scheme in ("tcp", "ipc", "udp")
    if not is_known or endpoint.options or endpoint.is_wildcard:
        limit = "tcp://HOST:PORT, ipc://PATH or udp://GROUP:PORT, without options"
        raise ConfigError("endpoint", limit, text)
    return endpoint


def _place_text(endpoint: transports.Endpoint) -> str:
    text = str(endpoint)
    return f"{text[:-1]}*" if endpoint.scheme == "tcp" and endpoint.port == 0 else text


def _words(line: str) -> list[str]:
    words = line.split()
    comment = next((at for at, word in enumerate(words) if word.startswith("#")), len(words))
    return words[:comment]


def _peer_of(line: str) -> KnownPeer | None:
    words = _words(line)
    return parse_peer(words) if words else None
