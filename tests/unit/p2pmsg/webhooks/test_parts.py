"""Parts of webhooks: signatures, delivery by a manual clock, events, files."""

import base64
import contextlib
import datetime
import itertools
import json
import resource

import pytest

from p2pmsg import webhooks
from p2pmsg.errors import ConfigError, LogInUseError
from p2pmsg.webhooks import letters as letters_module
from p2pmsg.webhooks import seen as seen_module
from p2pmsg.webhooks.delivery import Delivery, Failure, Item
from p2pmsg.webhooks.events import events_of
from p2pmsg.webhooks.letters import Letter, Letters
from p2pmsg.webhooks.seen import SeenIds
from p2pmsg.webhooks.signatures import (
    Proof,
    content_of,
    is_signed,
    signature_header,
    signers,
    verifiers,
)

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + base64.b64encode(bytes(range(24))).decode()
PRIVATE = "whsk_" + base64.b64encode(bytes(range(32))).decode()
PUBLIC = "whpk_A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg="


def test_the_example_of_the_specification():
    content = content_of("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert signature_header(signers(SECRET), content) == expected
    assert is_signed(verifiers(SECRET), expected, content)


def test_both_secrets_sign_while_one_is_replaced():
    header = signature_header(signers([SECRET, OTHER]), b"content")
    assert len(header.split()) == 2
    for secret in (SECRET, OTHER):
        assert is_signed(verifiers(secret), header, b"content")
    assert is_signed(verifiers([OTHER, SECRET]), signature_header(signers(SECRET), b"x"), b"x")


@pytest.mark.parametrize(
    "header",
    ["", "v1", "v1,", "v1,AAAA", "v1a,AAAA", "v2,x", "v1,é", "v1a,\xff", " ", "v1,x " * 1000],
)
def test_what_is_no_signature_is_refused(header):
    assert not is_signed(verifiers(SECRET), header, b"content")


def test_ed25519_signs_and_the_public_key_checks():
    pytest.importorskip("cryptography", reason="Ed25519 needs cryptography (extra webhooks)")
    header = signature_header(signers(PRIVATE), b"content")
    assert header.startswith("v1a,")
    public = verifiers(PUBLIC)
    assert is_signed(public, header, b"content")
    assert not is_signed(public, header, b"other")
    assert not is_signed(public, "v1a,AAAA v1a,é", b"content")
    assert not is_signed(verifiers(SECRET), header, b"content")


TAKEN = [
    SECRET, SECRET[6:], SECRET + "====", "whsec_AAE", "AAE=", "AA E\n=", "AA-E", "abc",
    base64.b64encode(bytes(1000)).decode(), b"raw bytes", b"\0", "my secret phrase", "whsec_AAAA",
]  # fmt: skip


@pytest.mark.parametrize("secret", TAKEN)
def test_what_the_library_of_standard_webhooks_takes_signs_here_as_it_does_there(secret):
    library = pytest.importorskip("standardwebhooks", reason="needs standardwebhooks from PyPI")
    now = datetime.datetime.fromtimestamp(1614265330, datetime.UTC)
    theirs = library.Webhook(secret).sign("msg_1", now, "{}")
    content = content_of("msg_1", 1614265330, b"{}")
    assert signature_header(signers(secret), content) == theirs
    assert is_signed(verifiers([OTHER, secret]), theirs, content)


@pytest.mark.parametrize("secret", ["", b"", "whsec_", "a", "whsec_AAAAA", "=", "whsec_é"])
def test_what_the_library_of_standard_webhooks_refuses_is_refused(secret):
    library = pytest.importorskip("standardwebhooks", reason="needs standardwebhooks from PyPI")
    with pytest.raises((ValueError, library.webhooks.EmptyWebhookSecretError)):
        library.Webhook(secret)
    with pytest.raises(ConfigError, match="secret must be"):
        signers(secret)


@pytest.mark.parametrize(("make", "text"), [(signers, "whpk_" + "A" * 43), (verifiers, PRIVATE)])
def test_a_key_for_the_other_side_is_refused(make, text):
    with pytest.raises(ConfigError, match=r"secret must be .*, not 'whs?p?k_.?…'") as raised:
        make(text)
    assert text not in str(raised.value)


S = 1_000_000_000
DOWN = Failure("connection refused")
LIMITS = ("batch_max", "window", "parked_max")
WRONG = Failure("answered 500", 500)


class Exact:
    """A source of randomness for waits that are neither longer nor shorter."""

    def random(self):
        return 0.5


class Endpoint:
    """A delivery with a clock, and a shell that persists at once."""

    def __init__(self, **rules):
        self.now = 1000 * S
        limits = {name: rules.pop(name) for name in LIMITS if name in rules}
        settings = webhooks.Endpoint("http://a.example.com/", **({"concurrency": 1} | rules))
        self.core = Delivery(settings, Exact(), **limits)
        self.letters = {}
        self.reports = []
        self.committed = {}
        self.sequences = {}

    def offer(self, count=1, topic="t", key=None, size=10):
        for _ in range(count):
            sequence = self.sequences.get(topic, 0)
            self.sequences[topic] = sequence + 1
            item = Item(f"{topic}{sequence}", topic, key, size, sequence)
            self.core.offer(item, self.now)
        self.work()

    def take(self):
        items = self.core.take(self.now)
        return items or None

    def work(self):
        while self.core.effects:
            effect = self.core.effects.popleft()
            if effect.kind in ("park", "dead"):
                self.letters[effect.item.id] = effect.kind
                self.core.persisted(effect, self.now)
            elif effect.kind == "unpark":
                del self.letters[effect.item.id]
            else:
                self.reports.append(effect.kind)
        for item in self.core.committable():
            assert item.content > self.committed.get(item.stream, -1)
            self.committed[item.stream] = item.content

    def good(self, items):
        self.core.succeeded(items, self.now)
        self.work()

    def bad(self, items, failure=WRONG):
        self.core.failed(items, self.now, failure)
        self.work()

    def wait(self):
        """Move on to the next deadline; return how many seconds that took."""
        deadline = self.core.next_deadline_ns()
        seconds = max(0, deadline - self.now) / S
        self.now = max(self.now, deadline)
        return seconds

    def ids(self, items):
        return [item.id for item in items]


def test_the_schedule_is_that_of_standard_webhooks():
    end = Endpoint(order="none")
    end.offer()
    waits = []
    for _ in range(10):
        waits.append(round(end.wait()))
        end.bad(end.take())

    assert waits == [0, 5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400]
    assert end.letters == {"t0": "dead"}
    assert end.committed == {"t": 0}
    assert end.core.stats.dead == 1


def test_the_breaker_opens_probes_and_closes():
    end = Endpoint(order="none", concurrency=8)
    end.offer(8)
    for items in [end.take() for _ in range(5)]:
        end.bad(items, DOWN)
    assert end.reports == ["opened"]
    assert end.take() is None

    waits = []
    for _ in range(8):
        waits.append(round(end.wait()))
        probe = end.take()
        assert end.take() is None
        end.bad(probe, DOWN)
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300]
    end.wait()
    end.good(end.take())
    assert end.reports == ["opened", "closed"]
    end.now += 3 * S
    while items := end.take():
        end.good(items)
    assert end.core.waiting == 0
    assert end.committed == {"t": 7}


def test_a_probe_before_its_time_uses_up_no_attempt():
    end = Endpoint(order="stream")
    end.offer()
    end.bad(end.take(), DOWN)
    end.wait()
    end.bad(end.take(), DOWN)  # the second of two: it opens
    attempts = []
    for _ in range(5):
        end.wait()
        probe = end.take()
        end.bad(probe, DOWN)
        attempts.append(probe[0].attempts)
    assert attempts == [2] * 5


def test_one_message_that_is_refused_does_not_open_the_breaker():
    end = Endpoint(order="none")
    end.offer()
    for _ in range(9):
        end.wait()
        end.bad(end.take())
    assert end.reports == []


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


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "hook"


def letter(number, why="dead", **more):
    more.setdefault("body", b"body")
    return Letter(id=f"msg_{number}", why=why, topic="t", session=2**63, sequence=number, **more)


def ids(file, why):
    return [each.id for each in file.all(why)]


def test_dead_letters_have_a_bound(folder, monkeypatch):
    monkeypatch.setattr(letters_module, "_DEAD_MAX", 2)
    monkeypatch.setattr(letters_module, "_DEAD_BYTES_MAX", 2000)
    file = Letters(folder)
    file.write([letter(1), letter(2, "parked")])
    with pytest.raises(OSError, match="more dead letters than"):
        file.write([letter(3, body=bytes(2000))])
    file.write([letter(3)])
    with pytest.raises(OSError, match="more dead letters than"):
        file.write([letter(4)], ["msg_2"])
    assert (ids(file, "dead"), ids(file, "parked")) == (["msg_1", "msg_3"], ["msg_2"])
    file.write([letter(4)], ["msg_1"])
    file.close()


def test_a_folder_has_one_sender_and_others_ask_it(folder):
    sender, command = Letters(folder), Letters(folder)
    sender.lock()
    with pytest.raises(LogInUseError):
        command.lock()
    sender.write([letter(1), letter(2), letter(3, "parked")])
    command.ask(["msg_1", "msg_3", "none", "\ud800"])
    command.purge(["msg_1", "msg_2", "msg_3"])
    assert sender.all("asked") == [letter(1, "asked")]
    assert (ids(sender, "dead"), ids(sender, "parked")) == ([], ["msg_3"])
    sender.close()
    command.lock()
    command.close()


def test_a_file_that_is_damaged_meanwhile_is_a_failure_that_is_tried_again(folder):
    file = Letters(folder)
    file.write([letter(1)])
    for path in folder.glob("letters*"):
        path.write_bytes(b"U" * path.stat().st_size)
    for fails in (
        lambda: file.write([letter(2)]),
        lambda: file.count("dead"),
        lambda: file.all("dead"),
    ):
        with pytest.raises(OSError, match="database"):
            fails()
    file.close()


DAY = 86_400.0


def test_an_id_is_kept_for_its_time_and_over_restarts(tmp_path):
    path = tmp_path / "seen"
    seen = SeenIds(path, 0.0)
    seen.add("a", 100.0)
    assert seen.has("a", 100.0)
    seen.close()

    again = SeenIds(path, 3 * DAY)
    assert again.has("a", 3 * DAY)
    assert not again.has("b", 3 * DAY)
    assert not again.has("a", 4 * DAY)
    again.add("a", 4 * DAY)
    assert again.has("a", 4 * DAY)
    assert (len(again), again.forgotten) == (1, 0)
    again.close()


def test_ids_and_file_have_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(seen_module, "IDS_MAX", 100)
    path = tmp_path / "seen"
    seen = SeenIds(path, 0.0)
    for number in range(5_000):
        seen.add(str(number), number / 1000)
    assert (len(seen), seen.forgotten) == (100, 4_900)
    seen.close()
    assert path.stat().st_size < 100_000
    again = SeenIds(path, 5.0)
    assert [again.has(str(number), 5.0) for number in (4_899, 4_900, 4_999)] == [False, True, True]
    again.close()


@contextlib.contextmanager
def no_file_above(size):
    """Let the system write no file of this process further than that; it writes what has place."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_ids_that_had_no_space_are_written_when_there_is_some(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(seen_module, "IDS_MAX", 50)
    path = tmp_path / "seen"
    seen = SeenIds(path, 0.0)
    seen.add("before", 1.0)
    names = [f"full{number}" for number in range(200)]
    with no_file_above(0):
        for name in names:
            seen.add(name, 1.0)
        assert seen.unwritten == len(seen) == 50
        assert all(seen.has(name, 1.0) for name in names[-50:])
    seen.add("after", 1.0)
    assert (seen.unwritten, seen.failures) == (0, 200)
    seen.close()
    again = SeenIds(path, 1.0)
    assert [*filter(lambda name: again.has(name, 1.0), ["before", *names, "after"])] == [
        *names[-49:], "after",
    ]  # fmt: skip
    again.close()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "It is tried again; what is taken meanwhile is known" in said[0]
    assert f"{path}: it works again, after 200 failures" in said[1]
