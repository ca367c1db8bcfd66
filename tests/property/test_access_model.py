"""Rules of access against a naive model: each topic of a small world, and each rule in turn."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmsg.security.access import Access, Rule

LETTERS = "aé"
WORLD = ["".join(t) for size in range(1, 5) for t in product(LETTERS + "z", repeat=size)]
"""All topics of one letter more than patterns have, with one that no pattern has."""

text = st.text(LETTERS, max_size=3)
patterns = st.one_of(text.filter(bool), text.map("{}*".format))
rules = st.builds(
    lambda who, deny, patterns, history: Rule(
        number=1, who=tuple(who), verbs={"subscribe": tuple(patterns)}, deny=deny,
        replay_max_ns=None if deny else history,
    ),
    st.lists(st.sampled_from(["ann", "an*", "bob", "*"]), min_size=1, max_size=2),
    st.sampled_from([False, False, True]),
    st.lists(patterns, min_size=1, max_size=4),
    st.sampled_from([None, 0, 5, 9]),
)  # fmt: skip


def fits(pattern, name):
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def naive(every, who, topic):
    """Whether it is allowed, and how much history."""
    said = [
        rule
        for rule in every
        if any(fits(one, who) for one in rule.who)
        and any(fits(one, topic) for one in rule.verbs["subscribe"])
    ]
    if not said or any(rule.deny for rule in said):
        return None
    return max(float("inf") if r.replay_max_ns is None else r.replay_max_ns for r in said)


def check(every, who, prefix):
    access = Access({}, every)
    found = {}
    for topic in WORLD:
        decision = access.decide(who, "subscribe", topic)
        limit = float("inf") if decision.replay_max_ns is None else decision.replay_max_ns
        found[topic] = limit if decision else None
    assert found == {topic: naive(every, who, topic) for topic in WORLD}
    whole = access.decide(who, "subscribe", prefix + "*")
    assert bool(whole) == all(found[t] is not None for t in WORLD if t.startswith(prefix))
    encoded = prefix.encode()
    for end in range(1, len(encoded) + 1):  # of which some are parts of a letter
        begun = [t for t in WORLD if t.encode().startswith(encoded[:end])]
        if access.covers(who, "subscribe", encoded[:end]):
            assert all(found[topic] is not None for topic in begun)
        exact = access.covers(who, "subscribe", encoded + b"\0p2")
        assert bool(exact) == (found[prefix] is not None)
    assert not access.covers(who, "subscribe", b"")


@pytest.mark.rounds(150, 10_000)
def test_what_is_allowed_is_what_a_naive_model_allows(rounds):
    cases = given(st.lists(rules, max_size=4), st.sampled_from(["ann", "bob", "eve"]), text)
    settings(max_examples=rounds, deadline=None)(cases(check))()
