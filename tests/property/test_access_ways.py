"""Nothing that is denied comes by any way out: random rules, random questions, real cores.

The queue, its dead letters, and the requests of a publisher (echoes, heads, repairs, `$stats`) are
asked by two users in turn while the rules change, and what they get is compared with a naive model.
"""

import random

import pytest

from p2pmsg import control, wire
from p2pmsg.codec import Raw
from p2pmsg.config import PublisherConfig
from p2pmsg.publisher.core import PublisherCore
from p2pmsg.queue import frames
from p2pmsg.queue.pull_access import PullAccess
from p2pmsg.queue.pusher_core import PusherCore
from p2pmsg.queue.rules import End, QueuedJob
from p2pmsg.security.access import Access, Rule
from p2pmsg.wire import Frame, Kind
from tests.property.test_access_model import fits
from tests.queues import job_queue

CONFIG = PublisherConfig()
USERS = ("ann", "bob")
TOPICS = ("a", "ab", "b", "$stats")
QUEUES = ("jobs", "job", "other")
VERBS = ("subscribe", "pull", "admin")


class AccessRules:
    """An access file's rules, which may change; a user's id is its name."""

    def __init__(self, rng):
        self.rng = rng
        self.change()

    def change(self):
        rng = self.rng
        names = {"subscribe": [*TOPICS, "a*", "$*", "*"], "pull": [*QUEUES, "jo*", "*"]}
        names["admin"] = names["pull"]
        self.rules = [
            Rule(
                number=number, who=(rng.choice([*USERS, "*", "a*"]),),
                verbs={verb: (rng.choice(names[verb]),) for verb in rng.sample(VERBS, 2)},
                deny=rng.random() < 0.3,
            )
            for number in range(rng.randrange(5))
        ]  # fmt: skip
        self.access = Access({}, self.rules)

    def expected(self, user, verb, topic):
        """What a naive model says."""
        said = [
            rule
            for rule in self.rules
            if any(fits(one, user) for one in rule.who)
            and any(fits(one, topic) for one in rule.verbs.get(verb, ()))
        ]
        return bool(said) and not any(rule.deny for rule in said)

    def may(self, user, verb, topic):
        return bool(self.access.decide(user, verb, topic))

    def has_any(self, user, verb):
        return self.access.has_any(user, verb)

    def has_limit(self, user):
        return False

    def history_ns(self, user, topic):
        return None

    def why(self, user, verb, topic):
        return "denied"

    def who(self, user):
        return user


def check_queue(rng, access_rules):
    queue = job_queue(deliveries_max=1)
    name = rng.choice(QUEUES)
    core = PusherCore(queue, name=name, session=1, incarnation=1)
    core.access_rules = PullAccess(access_rules, name, "the pusher")
    for sequence in range(3):
        queue.store.push(QueuedJob(sequence, b"\xa6secret", 1), now_ns=0)
    queue.store.end(QueuedJob(9, b"\xa6secret", 1), End.DISCARDED, "w", "secret", now_ns=0)

    def taken(user):
        """What a user gets, by its connection; and whether it may have jobs, and dead letters."""
        core.pump(now_ns=0)
        found = [Frame(data) for to, data in core.outbox if to == user.encode()]
        mine = {frame.kind for frame in found}
        letters = [one for one in found if one.kind == Kind.QUEUE_ANSWER and b"secret" in one.data]
        assert not (Kind.JOBS in mine and not access_rules.expected(user, "pull", name))
        assert not (letters and not access_rules.expected(user, "admin", name))

    for step in range(12):
        user = rng.choice(USERS)
        identity, worker = user.encode(), USERS.index(rng.choice(USERS)) + 1
        kind = rng.choice(["empty hello", "hello", "ack", "admin", "leave", "rules"])
        done = queue.store.done
        dead = len(queue.store.dead)
        core.outbox.clear()
        if kind == "rules":
            access_rules.change()
            core.check_access_rules(now_ns=0)
            holders = {core._users[one.id] for one in queue.workers.values()}
            assert all(access_rules.expected(one, "pull", name) for one in holders)
        elif kind == "admin":
            action = rng.choice(["list", "retry", "purge"])
            body = frames.Admin(step, action, [0], True)
            give(core, identity, user, Kind.QUEUE_ADMIN, 0, body)
        elif kind == "ack":
            body = frames.Report([(0, 2**40)])
            give(core, identity, user, Kind.QUEUE_REPORT, worker, body, sequence=step + 1)
        else:
            token = next((c.token for i, c in core._connections.items() if i == identity), 0)
            hello = frames.Hello(
                "w", "", 0, 0, 4, token if kind == "hello" else 0, step, [], [], 0, 2**24
            )
            sent = Kind.QUEUE_LEAVE if kind == "leave" else Kind.QUEUE_HELLO
            give(core, identity, user, sent, worker, None if kind == "leave" else hello)
        for one in USERS:
            taken(one)
        assert queue.store.done == done or access_rules.expected(user, "pull", name)
        assert len(queue.store.dead) == dead or access_rules.expected(user, "admin", name)


def give(core, identity, user, kind, worker, body, **header):
    frame = wire.control_frame(kind, worker, body, **header)
    core.receive(identity, frame, now_ns=0, user=user)


def make_publisher(access_rules):
    core = PublisherCore(name="feed", session=9, recovery="memory://r", config=CONFIG, now_ns=0)
    core.use_access_rules(access_rules)
    for topic in TOPICS:
        for number in range(3):
            core.publish(topic, f"secret{number}", None, None, None, now_ns=0, wall_ns=1)
    core.flush(now_ns=0)
    return core


def check_publisher(rng, access_rules):
    core = make_publisher(access_rules)
    requests = core.requests
    for step in range(8):
        user = rng.choice(USERS)
        asker = user.encode()
        patterns = rng.sample([*TOPICS, "a*", "*", "$*"], rng.randrange(1, 4))
        probe = control.Probe(step, patterns, rng.choice(["earliest", "time"]))
        kind, body = rng.choice([
            (Kind.PROBE, probe), (Kind.HEADS_REQUEST, probe), (Kind.HEADS_REQUEST, None),
            *((Kind.NACK, control.Nack(topic, [(0, 5)])) for topic in TOPICS),
        ])  # fmt: skip
        at_first = {topic: access_rules.expected(user, "subscribe", topic) for topic in TOPICS}
        frame = wire.control_frame(kind, core.session, body)
        now_ns = step * 10**9
        requests.receive(asker, frame, now_ns=now_ns, user=user, wall_ns=now_ns)
        asked = wire.Frame(wire.control_frame(Kind.PROBE, core.session, probe))
        for page in requests.heads.bodies(core.own, asker, asked, probe, now_ns=now_ns) or []:
            assert all(at_first[head.topic] for head in read_heads(page).streams)
        if rng.random() < 0.3:
            access_rules.change()
        while (reply := requests.next_reply(now_ns=now_ns)) is not None:
            found = Frame(bytes(reply.frame))
            assert reply.requester == asker
            if found.kind == Kind.DATA:
                assert access_rules.expected(user, "subscribe", found.topic)
            elif found.kind == Kind.HEADS:
                heads = control.read_body(found, control.Heads)
                assert all(at_first[head.topic] for head in heads.streams)
            requests.reply_sent(reply, now_ns=now_ns)


def read_heads(body):
    return control.read_body(Frame(wire.control_frame(Kind.ECHO, 1, Raw(body))), control.Heads)


@pytest.mark.rounds(150, 10_000)
def test_nothing_denied_comes_by_any_way_out(rounds):
    for seed in range(rounds):
        rng = random.Random(seed)
        check_queue(rng, AccessRules(rng))
        check_publisher(rng, AccessRules(rng))
