"""The request server: partial answers, budgets, history."""

import pytest

from p2pmsg.mold import codec
from p2pmsg.mold.publisher_core import ALL_BURST_BYTES, HOST_BURST_BYTES, MoldPublisherCore
from recovery import ReplayBuffer

SESSION = b"TEST      "
MS = 1_000_000


def make(**changes):
    options = {
        "session": SESSION,
        "packet_bytes": 100,
        "history": None,
        "now_ns": 0,
    }
    return MoldPublisherCore(**{**options, **changes})


def answers(core, start, count, address=("me", 1), now_ns=0):
    core.receive_request(codec.request(SESSION, start, count), address, now_ns=now_ns)
    found = []
    for data, to in answered(core):
        assert to == address
        assert len(data) <= 100
        found.append(codec.read_packet(data))
    return found


def answered(core):
    """Yield (packet, address) of all answers."""
    while (answer := core.next_answer()) is not None:
        if not answer.messages:
            core.read_log(answer)
            core.ask_history(answer)
        if answer.messages:
            yield core.packet_of(answer), answer.address
        else:
            core.refuse(answer)


def test_a_request_is_answered_by_one_packet_across_the_packets_that_were_sent():
    core = make()
    for number in range(40):
        core.publish([b"%02d" % number], now_ns=0)
    (packet,) = answers(core, 11, 30)
    assert packet.sequence == 11
    assert packet.messages == [b"%02d" % number for number in range(10, 30)]  # what fits
    (packet,) = answers(core, 39, 1000)
    assert packet.messages == [b"38", b"39"]


def test_what_is_no_longer_kept_comes_from_the_history_or_not_at_all():
    log = [b"%03d" % number for number in range(200)]
    for history in (None, lambda start, stop: log[start - 1 : stop - 1]):
        core = make(replay_bytes=200, history=history)
        core.publish(log, now_ns=0)
        found = answers(core, 3, 2)
        if history is None:
            assert found == []
            assert core.unanswered == 2
        else:
            assert found[0].messages == [b"002", b"003"]


def test_heartbeats_and_the_end():
    core = make()
    core.publish([b"x"], now_ns=0)
    core.outbox.clear()
    core.handle_timer(now_ns=19 * MS)
    assert not core.outbox
    core.handle_timer(now_ns=20 * MS)
    assert core.outbox.pop() == codec.heartbeat(SESSION, 2)
    core.end(now_ns=30 * MS)
    for _ in range(2):
        core.handle_timer(now_ns=30 * MS)
    assert list(core.outbox) == [codec.end_of_session(SESSION, 2)]


def test_one_that_a_stranger_names_as_the_sender_gets_a_bounded_amount():
    core = make(packet_bytes=1400)
    core.publish([bytes(1000)] * 100, now_ns=0)

    def size_of(host, now_ns, count=10_000):
        total = 0
        for port in range(count):
            core.receive_request(codec.request(SESSION, 1, 1), (host, port), now_ns=now_ns)
            total += sum(len(data) for data, _ in answered(core))
        return total

    flood = size_of("victim", 0)
    assert HOST_BURST_BYTES // 2 < flood <= HOST_BURST_BYTES
    assert core.throttled > 1000
    assert size_of("another", 0, 10) > 10_000  # its neighbours are served all the same
    assert size_of("victim", 10**9) <= HOST_BURST_BYTES
    hosts = sum(size_of(f"host{number}", 10**9, 4000) for number in range(6))
    assert hosts <= ALL_BURST_BYTES


def test_what_an_exception_left_half_done_is_gone_on_after(monkeypatch):
    core = make()

    def fail(*arguments, **options):
        raise MemoryError

    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(ReplayBuffer, "append", fail)
        core.publish([b"1", b"2"], now_ns=0)
    core.resync()
    assert core.publish([b"3"], now_ns=0) == (3, 3, None)
    packets = [codec.read_packet(data) for data in core.outbox]
    assert [(each.sequence, each.messages) for each in packets] == [(1, [b"1", b"2"]), (3, [b"3"])]
