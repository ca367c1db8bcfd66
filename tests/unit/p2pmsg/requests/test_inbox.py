"""Requests that were received and not looked at yet."""

from p2pmsg.requests.inbox import Inbox

MS = 1_000_000


class Server:
    """A socket to which requests have come."""

    def __init__(self, *requests):
        self.waiting = list(requests)
        self.user = ""
        self.looks = 0

    def receive(self):
        self.looks += 1
        if not self.waiting:
            return None
        where, data, self.user = self.waiting.pop(0)
        return where, data


def test_each_keeps_its_user_and_its_time_of_receipt():
    server = Server((b"a", b"1", "ann"), (b"b", b"2", "bob"))
    inbox = Inbox(server)
    inbox.fill(5)
    server.waiting = [(b"a", b"3", "ann")]
    inbox.fill(5 + 10 * MS)
    taken = [inbox.take() for _ in range(3)]
    assert taken == [
        (b"a", b"1", "ann", 5), (b"b", b"2", "bob", 5), (b"a", b"3", "ann", 5 + 10 * MS)
    ]  # fmt: skip
    assert inbox.take() is None


def test_it_looks_again_after_10_ms():
    server = Server()
    inbox = Inbox(server)
    for now_ns in (0, 1, 10 * MS - 1):
        inbox.fill(now_ns)
    assert server.looks == 1
    inbox.fill(10 * MS)
    assert server.looks == 2


def test_where_more_has_come_than_it_receives_at_once_it_goes_on_the_next_time():
    server = Server(*[(b"a", b"%d" % n, "") for n in range(7)])
    inbox = Inbox(server, burst=3)
    for now_ns in range(3):
        inbox.fill(now_ns)
    assert [inbox.take()[3] for _ in range(7)] == [0, 0, 0, 1, 1, 1, 2]


def test_it_is_bounded_in_number_and_in_bytes():
    server = Server(*[(b"a", b"", "")] * 10_005)
    inbox = Inbox(server)
    inbox.fill(0)
    inbox.fill(10 * MS)
    assert len(inbox) == 10_000
    inbox.take()
    inbox.fill(20 * MS)
    assert len(inbox) == 10_000
    server = Server(*[(b"a", bytes(2**20), "")] * 20)
    inbox = Inbox(server)
    inbox.fill(0)
    assert len(inbox) == 16
    assert len(server.waiting) == 4
    for _ in range(16):
        inbox.take()
    inbox.fill(10 * MS)
    assert len(inbox) == 4
