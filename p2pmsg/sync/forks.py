"""A forked child inherits neither sockets nor threads: its copies of peers are closed."""

import os
import weakref
from typing import Protocol


class Forgetful(Protocol):
    """A peer that can forget what belongs to the parent process."""

    def _forget(self) -> None: ...


_peers: "weakref.WeakSet[Forgetful]" = weakref.WeakSet()


def close_in_children(peer: Forgetful) -> None:
    """Close the copy of `peer` in every child that is forked from now on."""
    _peers.add(peer)


def _forget_all() -> None:
    for peer in list(_peers):
        peer._forget()


os.register_at_fork(after_in_child=_forget_all)
