"""What is in a request: by which ids events are taken once."""

import itertools
import json

from p2pmsg.webhooks.events import events_of
from p2pmsg.webhooks.seen import SeenIds
from p2pmsg.webhooks.signatures import Proof

STRUCTURED = {"content-type": "application/cloudevents+json"}
JSON = {"content-type": "application/json"}


def of_cloud_event(source, event_id):
    event = {"specversion": "1.0", "source": source, "id": event_id, "type": "t"}
    (found,) = events_of(STRUCTURED, json.dumps(event).encode(), Proof("msg_1"), "/")
    return found


def of_request(request_id):
    (found,) = events_of(JSON, b"1", Proof(request_id), "/")
    return found


def test_different_events_are_not_taken_for_each_other():
    parts = ["a", "a b", "b", " ", "  ", "a ", " a", "%", "%20", "a%20b", "%2520", "b  a"]
    pairs = [*itertools.product(parts, repeat=2)]
    found = {of_cloud_event(*pair).id for pair in pairs}
    assert len(found) == len(pairs)
    requests = {" ".join(pair) for pair in pairs} | {*parts} | found
    found |= {of_request(each).seen_as for each in requests}
    assert len(found) == len(pairs) + len(requests)


def test_ids_that_are_no_utf8_are_kept_apart():
    seen = SeenIds(None, 0)
    seen.add("?", 0)
    assert not seen.has("\ud800", 0)
