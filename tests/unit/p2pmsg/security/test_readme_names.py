"""What the README and the guide's page name is there."""

import dataclasses
import importlib
import re
from pathlib import Path

import pytest

import p2pmsg.security

PACKAGE = Path(p2pmsg.security.__file__).parent
GUIDE = (PACKAGE.parents[1] / "docs" / "guide" / "security.md").read_text()
README = PACKAGE.joinpath("README.md").read_text() + GUIDE
MODULES = [
    "p2pmsg.stats", "p2pmsg.queue", "p2pmsg.queue.pipeline.config", "p2pmsg.relay.stats",
    "p2pmsg.multicast.group_keys", "p2pmsg",
]  # fmt: skip
NAMES = sorted(set(re.findall(r"`([A-Z]\w+)\.(\w+)", README)))
COUNTERS = sorted(set(re.findall(r"`stats\(\)\.(\w+)", README)))


def home_of(name):
    modules = map(importlib.import_module, MODULES)
    return next(found for one in modules if (found := getattr(one, name, None)) is not None)


def names_of(kind):
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    return {*dir(kind), *(field.name for field in fields)}


@pytest.mark.parametrize(("name", "attribute"), NAMES, ids=map(".".join, NAMES))
def test_an_attribute_that_is_named_is_there(name, attribute):
    assert attribute in names_of(home_of(name))


@pytest.mark.parametrize("counter", COUNTERS)
def test_a_counter_that_is_named_is_there(counter):
    kinds = ("PublisherStats", "SubscriberStats", "RelayStats", "PusherStats", "PullerStats")
    assert any(counter in names_of(home_of(kind)) for kind in kinds)
