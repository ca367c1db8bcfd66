"""Any receiver, any order of answers: nothing lost, order kept, nothing committed too early."""

from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmsg.webhooks.delivery import Failure, State
from tests.unit.p2pmsg.webhooks.test_parts import Endpoint, S

FAILURES = [
    Failure("refused"), Failure("500", 500), Failure("429", 429, 3.0), Failure("503", 503, 0.0),
    Failure("302", 302), Failure("413", 413), Failure("no JSON", is_final=True),
]  # fmt: skip
SHORT = (0, 1, 5, 20)


class Model:
    def __init__(self, data, rules):
        self.data, self.rules = data, rules
        self.end = Endpoint(**dict(rules))
        self.flying = []
        self.delivered = []
        self.groups_flying = set()

    def group_of(self, item):
        if self.rules["order"] == "none" or (self.rules["order"] == "key" and item.key is None):
            return item.id
        return (item.stream, item.key) if self.rules["order"] == "key" else item.stream

    def send(self):
        while items := self.end.take():
            groups = {self.group_of(item) for item in items}
            assert not groups & self.groups_flying
            assert len(items) <= self.rules["batch_max"]
            self.groups_flying |= groups
            self.flying.append(items)
            assert len(self.flying) <= self.rules["concurrency"]

    def answer(self, is_good):
        at = self.data.draw(st.integers(0, len(self.flying) - 1))
        items = self.flying.pop(at)
        self.groups_flying -= {self.group_of(item) for item in items}
        if is_good:
            self.delivered += items
            self.end.good(items)
        else:
            self.end.bad(items, self.data.draw(st.sampled_from(FAILURES)))
        self.check()

    def check(self):
        end, core = self.end, self.end.core
        done = {item.id for item in self.delivered} | set(end.letters)
        for stream, sequence in end.committed.items():
            assert {f"{stream}{n}" for n in range(sequence + 1)} <= done
        assert core.held <= self.rules["window"]
        assert core.stats.parked <= self.rules["parked_max"]
        assert core.held >= 0
        assert core.stats.parked == sum(kind == "park" for kind in end.letters.values())
        assert core.stats.in_flight == len(self.flying)


@settings(max_examples=60)
@given(st.data())
def test_any_receiver(data):
    rules = {
        "order": data.draw(st.sampled_from(["stream", "key", "none"])),
        "concurrency": data.draw(st.integers(1, 4)),
        "batch_max": data.draw(st.sampled_from([1, 1, 3])),
        "window": data.draw(st.integers(1, 12)),
        "parked_max": data.draw(st.integers(0, 6)),
        "retry": SHORT,
    }
    model = Model(data, rules)
    end = model.end
    for step in data.draw(st.lists(st.sampled_from("ooogbbw"), max_size=40)):
        if step == "o" and end.core.wants:
            topic = data.draw(st.sampled_from("ab"))
            end.offer(1, topic, data.draw(st.sampled_from([None, "x", "y"])))
        elif step in "gb" and model.flying:
            model.answer(step == "g")
        elif step == "w":
            end.now += data.draw(st.integers(0, 30 * S))
        model.send()
        model.check()

    while end.core.waiting:  # the receiver is well from now on
        if model.flying:
            model.answer(True)
        else:
            end.wait()
        model.send()
    offered = [f"{topic}{n}" for topic, count in end.sequences.items() for n in range(count)]
    ids = [item.id for item in model.delivered]
    assert sorted(ids + list(end.letters)) == sorted(offered)
    assert set(end.letters.values()) <= {"dead"}
    assert end.committed == {topic: count - 1 for topic, count in end.sequences.items()}
    assert all(item.state is State.DONE for item in model.delivered)
    by_group = {}
    for item in model.delivered:
        by_group.setdefault(model.group_of(item), []).append(item.content)
    assert all(found == sorted(found) for found in by_group.values())
