"""A publisher with a log that is killed and started again. `… ENDPOINT DIRECTORY`."""

import sys
import time

import p2pmsg


def main(endpoint, directory):
    log = p2pmsg.LogConfig(directory)
    with p2pmsg.Publisher(endpoint, name="logged", log=log) as publisher:
        number = publisher.stats().streams.get("t", (0, 0))[1]
        while True:
            for _ in range(20):
                sequence = publisher.publish("t", b"%d" % number)
                assert sequence == number
                number += 1
            time.sleep(0.005)


if __name__ == "__main__":
    main(*sys.argv[1:])
