"""For packages that build upon p2pmsg, as its own do: what they need besides peers.

- Settings: `checked`, `check_fields` and `check` raise `ConfigError` with field, limit and value.
- What goes wrong: `Trouble` and `Rarely` say it when it begins and once a minute; `own_log` is the
  logger `p2pmsg`, whose handlers may raise without harm.
- The end: `close_at_exit` and `close_in_children` close what the program leaves open, and what a
  forked process inherited; `StopSignals` takes SIGTERM and Ctrl-C as a wish to stop.
- Endpoints, topics, messages: peers read and check theirs by `parse_endpoint`, `check_topics`,
  `matches`, `check_message` and `converted`.
- Peers of one's own: `Peer` has sockets, an engine and verbs (`Verb`), and `ThreadFace` and
  `LoopFace` have a driver for it, as in docs/design/driver.md. A `PublisherPeer`, which
  `PublisherSettings` describe, may be a part of one. A `Session` is what a subscriber knows of one
  publisher.
- Datagrams of a group or an address: `UdpReceiver`, which a poller waits for.
- Text: values as JSON (`to_json`), times (`time_text`); seconds as nanoseconds (`to_ns`).

It is imported eagerly and needs no extra.
"""

from p2pmsg.checks import (
    at_least,
    check,
    check_fields,
    check_result,
    check_runs,
    checked,
    is_async,
    makes_values,
    shown,
    time_to_wait,
    whole,
)
from p2pmsg.driver.faces import LoopFace, ThreadFace
from p2pmsg.driver.lifecycle import (
    INHERITED,
    ClosesItself,
    check_process,
    close_at_exit,
    close_in_children,
    was_closed,
)
from p2pmsg.driver.peer import Peer
from p2pmsg.driver.section import Section
from p2pmsg.driver.stop_signals import StopSignals
from p2pmsg.driver.verbs import Verb
from p2pmsg.json_text import json_value, time_text, to_json
from p2pmsg.peers.network import here
from p2pmsg.peers.opening import Settings as PublisherSettings
from p2pmsg.peers.publisher import PublisherPeer
from p2pmsg.peers.serving import check_count
from p2pmsg.peers.settings import check_endpoints, check_name, check_topics, parse_endpoint
from p2pmsg.publisher.packing import check_message
from p2pmsg.start import Start, parse_start
from p2pmsg.subscriber.policy import GapPolicy
from p2pmsg.subscriber.sessions import Session
from p2pmsg.subscriber.typed import converted
from p2pmsg.topics import check_topic, matches
from recovery.checks import to_ns
from transports.endpoint import Endpoint
from transports.hiding import hiding
from transports.own_log import own_log
from transports.trouble import Rarely, Trouble
from transports.udp import UdpReceiver, raise_receive_buffer

__all__ = [
    "INHERITED",
    "ClosesItself",
    "Endpoint",
    "GapPolicy",
    "LoopFace",
    "Peer",
    "PublisherPeer",
    "PublisherSettings",
    "Rarely",
    "Section",
    "Session",
    "Start",
    "StopSignals",
    "ThreadFace",
    "Trouble",
    "UdpReceiver",
    "Verb",
    "at_least",
    "check",
    "check_count",
    "check_endpoints",
    "check_fields",
    "check_message",
    "check_name",
    "check_process",
    "check_result",
    "check_runs",
    "check_topic",
    "check_topics",
    "checked",
    "close_at_exit",
    "close_in_children",
    "converted",
    "here",
    "hiding",
    "is_async",
    "json_value",
    "makes_values",
    "matches",
    "own_log",
    "parse_endpoint",
    "parse_start",
    "raise_receive_buffer",
    "shown",
    "time_text",
    "time_to_wait",
    "to_json",
    "to_ns",
    "was_closed",
    "whole",
]
