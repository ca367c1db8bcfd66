"""Payment before shipment, always: jobs of one key keep their order, over many workers.

    python examples/ordered_orders.py [ENDPOINT]

Each order is paid, packed and shipped. Workers fail now and then, so that jobs are delivered again;
steps of different orders overtake one another, steps of one order never do.
"""

import ctrl_c

import random
import threading
from collections import defaultdict

from arguments import optional

import p2pmsg

ORDERS = 100
STEPS = ["pay", "pack", "ship"]
WORKERS = 4

history: dict[str, list[str]] = defaultdict(list)
failures = 0


def work(puller: p2pmsg.Puller) -> None:
    """Do jobs, and fail at some."""
    global failures
    for job in puller:
        if random.random() < 0.1:
            failures += 1
            job.reject("the database is away", delay=0.01)
            continue
        with job:
            history[job.key].append(job.value["step"])


def main(place: str) -> None:
    """Push all orders' steps, and look at what was done in which order."""
    with p2pmsg.Pusher(place, deliveries_max=50) as pusher:
        pullers = [p2pmsg.Puller(pusher.endpoint) for _ in range(WORKERS)]
        threads = [threading.Thread(target=work, args=[puller], daemon=True) for puller in pullers]
        for thread in threads:
            thread.start()
        for step in STEPS:
            for number in range(ORDERS):
                order = f"order-{number}"
                pusher.push({"order": order, "step": step}, key=order)
        pusher.join(timeout=60)
        for puller in pullers:
            puller.close()
        for thread in threads:
            thread.join()
    in_order = sum(steps == STEPS for steps in history.values())
    print(f"{failures} deliveries failed and were repeated")
    print(f"{in_order} of {ORDERS} orders were paid, packed and shipped in this order")


if __name__ == "__main__":
    ctrl_c.run(main, optional(__doc__, "ENDPOINT", "tcp://127.0.0.1:5558"))
