"""Ask several, take what comes by the deadline: prices from three exchanges, one of them slow.

python examples/scatter_gather.py [FOLDER]      (for ipc endpoints; else TCP)
"""

import ctrl_c

import time

from arguments import optional

import p2pmsg


def exchange(endpoint: str, price: float, seconds: float = 0.0) -> p2pmsg.Responder:
    """Return a responder that answers with its price, after a while."""
    responder = p2pmsg.Responder(endpoint)

    @responder.on("price")
    def answer(symbol: str) -> dict[str, float]:
        if symbol != "BTCEUR":
            raise LookupError(f"{symbol} is not traded here")
        time.sleep(seconds)
        return {"bid": price - 0.5, "ask": price + 0.5}

    return responder


def main(place: str | None) -> None:
    """Ask three, wait for 0.3 s."""
    first, second, third = (
        f"ipc://{place}/exchange-{n}" if place else f"tcp://127.0.0.1:{5560 + n}" for n in range(3)
    )
    with (
        exchange(first, 61_685.0) as near,
        exchange(second, 61_680.0) as far,
        exchange(third, 61_700.0, seconds=1.0) as slow,
        p2pmsg.Requester([near.endpoint, far.endpoint, slow.endpoint]) as requester,
    ):
        answers = [*requester.request_all("price", "BTCEUR", deadline=0.3)]
        asks = [answer.value["ask"] for answer in answers if answer.error is None]
        print(f"{len(asks)} of 3 answered in time, the best ask is {min(asks)}")
        print(f"no answer from {', '.join(one.endpoint for one in answers if one.is_missing)}")
        try:
            requester.request("price", "NOTHING")
        except p2pmsg.errors.RemoteError as error:
            print(f"a remote exception: {error.type_name}: {error.text}")


if __name__ == "__main__":
    ctrl_c.run(main, optional(__doc__, "FOLDER"))
