"""What is in a request: by which ids events are taken once."""

import hashlib
import hmac
import itertools
import json

import pytest

from p2pmsg.http.asgi import RejectedError
from p2pmsg.webhooks.events import events_of
from p2pmsg.webhooks.seen import SeenIds
from p2pmsg.webhooks.signatures import Proof, make_verify

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


def test_an_id_may_be_missing():
    assert of_request("").seen_as == ""


def test_ids_that_are_no_utf8_are_kept_apart():
    seen = SeenIds(None, 0)
    seen.add("?", 0)
    assert not seen.has("\ud800", 0)


@pytest.mark.parametrize("event", ["{}", '{"id": null}', '{"id": ""}', '{"id": 5}', "[]"])
def test_an_event_of_stripe_without_an_id_is_refused(event):
    verify = make_verify("stripe", "whsec_test")
    mac = hmac.new(b"whsec_test", f"7.{event}".encode(), hashlib.sha256).hexdigest()
    with pytest.raises(RejectedError, match="the event has no id") as refused:
        verify({"stripe-signature": f"t=7,v1={mac}"}, event.encode(), 7)
    assert refused.value.status == 400
