"""Queues of requests that wait for space, one for each responder."""

import random

from p2pmsg.aio.unsent import UnsentRequests


def test_a_request_that_is_asked_again_waits_once_and_goes_as_it_is_now():
    unsent, sent = UnsentRequests(), []
    unsent.add(0, 1, b"before")
    unsent.add(0, 2, b"other")
    unsent.add(0, 1, b"now")
    assert len(unsent) == 2
    assert unsent.send(lambda at, data: not sent.append((at, data))) == 2
    assert sent == [(0, b"now"), (0, b"other")]
    assert not unsent


def test_it_does_as_a_list_for_each_responder():
    rng = random.Random(5)
    unsent, model = UnsentRequests(), {at: [] for at in range(3)}
    for step in range(3000):
        at, number = rng.randrange(3), rng.randrange(40)
        if (act := rng.random()) < 0.6:
            unsent.add(at, number, b"%d" % number)
            if number not in model[at]:
                model[at].append(number)
        elif act < 0.9:
            unsent.discard(number)
            model = {one: [n for n in queue if n != number] for one, queue in model.items()}
        else:
            space, sent = {one: rng.randrange(5) for one in range(3)}, []

            def send(one, data, space=space, sent=sent):
                space[one] -= 1
                if space[one] >= 0:
                    sent.append((one, int(data)))
                return space[one] >= 0

            before = {one: list(queue) for one, queue in model.items()}
            spaces = dict(space)
            count = unsent.send(send)
            assert count == len(sent)
            for one in range(3):
                went = [number for where, number in sent if where == one]
                assert went == before[one][: spaces[one]]
                model[one] = before[one][spaces[one] :]
                assert unsent.waiting_for(one) == bool(model[one])
        assert len(unsent) == sum(map(len, model.values())), step
        assert bool(unsent) == any(model.values())
