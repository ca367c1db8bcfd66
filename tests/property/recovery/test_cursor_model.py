"""A cursor's file is a list of states: a process' death keeps the last, a system's a later part."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery import CursorFile
from recovery.memory_store import MemoryStoreFile

SESSIONS = st.integers(1, 3)
TOPICS = st.sampled_from(["a", "b", "é"])
FAILURES = ["open", "before", "after", "sync"]
STEPS = st.one_of(
    st.tuples(st.just("join"), SESSIONS, st.dictionaries(TOPICS, st.integers(0, 9), max_size=3)),
    st.tuples(
        st.just("advance"),
        st.lists(st.tuples(SESSIONS, TOPICS, st.integers(0, 30)), max_size=3),
        st.booleans(),
    ),
    st.tuples(st.just("sync")),
    st.tuples(st.just("kill")),
    st.tuples(st.just("crash"), st.integers(0, 2**16)),
    st.tuples(st.just("fail"), st.sampled_from(FAILURES)),
)


class Model:
    """Every state that the file may have, the last one being what was asked for.

    Attributes:
        states: what may be found after a crash of the system, sessions to streams to positions.
        unconfirmed: how many of the last ones a process' death may take back.

    """

    def __init__(self):
        self.states = [{}]
        self.unconfirmed = 0

    @property
    def last(self):
        return {session: dict(streams) for session, streams in self.states[-1].items()}

    def note(self, state, *, durable):
        self.states = [state] if durable else [*self.states, state]
        self.unconfirmed = 0

    def on_failed(self, state):
        """Perhaps it is there; what is done next goes on from it."""
        self.states.append(state)
        self.unconfirmed += 1

    def after_kill(self):
        return self.states[-1 - self.unconfirmed :]

    def read_back(self, state):
        """A process has found `state`, which is a system's to lose until it is synced."""
        self.states = [*(other for other in self.states if other != state), state]
        self.unconfirmed = 0


def joined(state, session, starts):
    streams = state.pop(session, {})
    new = {topic: at for topic, at in starts.items() if at and topic not in streams}
    state[session] = {**streams, **new}
    return state


def advanced(state, positions):
    for session, topic, at in positions:
        if session in state and at > state[session].get(topic, -1):
            state[session][topic] = at
    return state


def found(cursor):
    return {session: dict(known.streams) for session, known in cursor.sessions.items()}


def open_again(store, model, allowed):
    file = CursorFile(store.open)
    state = found(file.cursor)
    assert state in allowed, (state, allowed)
    model.read_back(state)
    return file


class Disk(MemoryStoreFile):
    """A file that may also fail right before, or right after, a write."""

    def __init__(self):
        super().__init__(step=self.on_step)
        self.is_written = False

    def on_written(self, state, *, durable):
        super().on_written(state, durable=durable)
        self.is_written = True

    def on_step(self):
        was_written, self.is_written = self.is_written, False
        self.check("after" if was_written else "before")


def do(file, model, step):
    """Do what a process does; return whether it went well."""
    state = model.last
    if step[0] == "join":
        new, durable = joined(state, step[1], step[2]), True
    elif step[0] == "advance":
        new, durable = advanced(state, step[1]), step[2]
    else:
        new, durable = state, True
    try:
        if step[0] == "join":
            durable = file.join(step[1], ("*",), step[2], [])
        elif step[0] == "advance":
            file.advance(step[1], durable=step[2])
        else:
            file.sync()
    except OSError:
        kept = found(file.cursor)  # as it was, where not even the file could be opened again
        assert kept in (model.last, new)
        model.on_failed(kept)
        return False
    if new != model.last or durable:
        model.note(new, durable=durable)
    return True


@pytest.mark.rounds(200, 10_000)
def test_a_cursor_is_a_list_of_states(rounds):
    settings(max_examples=rounds, deadline=None)(given(st.lists(STEPS, max_size=30))(check))()


def test_what_fails_twice_in_a_row_is_done_or_not():
    check([("fail", "sync"), ("sync",), ("fail", "open"), ("join", 1, {}), ("sync",)])


def check(steps):
    store = Disk()
    file, model = CursorFile(store.open), Model()
    for step in steps:
        if step[0] == "fail":
            store.failing[step[1]] = OSError("no space")
            continue
        if step[0] == "kill":
            store.failing.clear()
            store.kill()
            file = open_again(store, model, model.after_kill())
        elif step[0] == "crash":
            store.failing.clear()
            store.crash(Random(step[1]))
            file = open_again(store, model, model.states)
        elif do(file, model, step):
            assert found(file.cursor) == model.last
        store.failing = {}
    store.failing = {}
    store.kill()
    open_again(store, model, model.after_kill())
