from recovery import HeartbeatSchedule

MS = 1_000_000


def test_heartbeats_grow_rarer_up_to_the_ceiling():
    schedule = HeartbeatSchedule(interval_min=0.01, interval_max=0.05, now_ns=0)
    sent = []
    for _ in range(6):
        now_ns = schedule.next_deadline_ns()
        assert not schedule.due(now_ns=now_ns - 1)
        assert schedule.due(now_ns=now_ns)
        schedule.sent(now_ns=now_ns)
        sent.append(now_ns // MS)
    assert sent == [10, 30, 70, 120, 170, 220]


def test_a_part_of_long_waits_alone_may_be_left_out():
    schedule = HeartbeatSchedule(interval_min=0.01, interval_max=0.04, now_ns=0)
    sent = []
    for early in (0.5, 0.5, 0.5, 0.25, 0.9):
        now_ns = schedule.next_deadline_ns()
        sent.append(now_ns // MS)
        schedule.sent(now_ns=now_ns, ceiling_ns=400 * MS, early=early)
    assert sent == [10, 30, 70, 110, 170]  # 20; 40; 80 less half; 80 less a quarter
    assert schedule.next_deadline_ns() == 210 * MS  # never less than interval_max


def test_data_brings_the_next_heartbeat_near_again():
    schedule = HeartbeatSchedule()
    for now_ms in (10, 30, 70):
        schedule.sent(now_ns=now_ms * MS)
    schedule.data_sent(now_ns=100 * MS)
    assert schedule.next_deadline_ns() == 110 * MS
    schedule.sent(now_ns=110 * MS)
    assert schedule.next_deadline_ns() == 130 * MS
