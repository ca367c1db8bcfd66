"""A service in asyncio: it takes orders by request, queues them, works on them, publishes results.

    a customer ── request "order" ─▶ the service ── queue ─▶ two workers
        ▲                                                       │
        └────────────────── published: "done" ◀─────────────────┘

All of it is one program without a thread: `python examples/aio_service.py [FOLDER]`, where FOLDER
is for ipc endpoints and the queue's log; else TCP, and no log.
"""

import ctrl_c

import asyncio

from arguments import optional

from p2pmsg import aio

ORDERS = 20


async def work(name: str, puller: aio.Puller, publisher: aio.Publisher) -> None:
    """Do jobs until the puller is closed; one that fails is tried again."""
    async for job in puller:
        try:
            async with job:  # acknowledged at the end, rejected if it raises
                await asyncio.sleep(0.002)
                if job.value["item"] == "bell" and job.delivery_count == 1:
                    raise LookupError("no bell is in stock")
                publisher.publish("done", {**job.value, "by": name}, key=job.value["item"])
        except LookupError as error:
            print(f"order {job.value['number']} is tried again: {error}", flush=True)
        await publisher.drain()


async def serve(responder: aio.Responder, pusher: aio.Pusher) -> None:
    """Take orders: each is accepted when it is in the queue."""

    @responder.on("order")
    async def take(order: dict[str, object]) -> int:
        sequence = pusher.push(order)
        await pusher.drain()  # waits while the queue is full, or until the log is on the disk
        return sequence

    await responder.serve()


async def order(requester: aio.Requester) -> list[int]:
    """Order many things at once; return the numbers under which the queue has them."""
    items = ("book", "lamp", "bell", "vase")
    orders = [{"number": n, "item": items[n % len(items)]} for n in range(ORDERS)]
    return await asyncio.gather(*(requester.request("order", each) for each in orders))


async def collect(subscriber: aio.Subscriber) -> dict[int, str]:
    """Return who did which order, when all are done."""
    done: dict[int, str] = {}
    async for message in subscriber:
        done[message.value["number"]] = message.value["by"]
        if len(done) == ORDERS:
            break
    return done


async def run(place: str | None) -> None:
    """Start the parts, order, wait until all is done."""
    ask, queue, feed = (
        f"ipc://{place}/{name}" if place else f"tcp://127.0.0.1:{port}"
        for name, port in (("ask", 5570), ("queue", 5571), ("feed", 5572))
    )
    async with (
        aio.Publisher(feed) as publisher,
        aio.Subscriber(feed, topics=["done"]) as subscriber,
        aio.Pusher(queue, log=f"{place}/log" if place else None) as pusher,
        aio.Puller(queue) as puller,
        aio.Responder(ask) as responder,
        aio.Requester(ask) as requester,
    ):
        await publisher.wait_for_subscribers(1, timeout=10.0)
        service = asyncio.create_task(serve(responder, pusher))
        workers = [asyncio.create_task(work(f"worker {n}", puller, publisher)) for n in (1, 2)]
        collecting = asyncio.create_task(collect(subscriber))
        accepted = await order(requester)
        print(f"{len(set(accepted))} of {ORDERS} orders were accepted", flush=True)
        done = await asyncio.wait_for(collecting, 30.0)
        await pusher.join(timeout=10.0)
        print(f"{len(done)} of {ORDERS} are done, by {' and '.join(sorted(set(done.values())))}")
        stats = subscriber.stats()
        print(f"delivered {stats.delivered} of {stats.published}, lost {stats.lost}", flush=True)
        await responder.close()
        await puller.close()
        await asyncio.gather(service, *workers)


def main(place: str | None) -> None:
    """Run the service in an event loop."""
    asyncio.run(run(place))


if __name__ == "__main__":
    ctrl_c.run(main, optional(__doc__, "FOLDER"))
