"""Runs of datagrams; a module of its own, since every subscriber needs the class, and no more."""

from typing import NamedTuple

from p2pmsg.wire import Frame


class Run(NamedTuple):
    """Datagrams that became one frame: how many there were, and where the next one begins."""

    frame: Frame
    datagrams: int
    after: int
