"""A pipeline's puller in a process of its own: `python -m … ENDPOINT BOOK`.

It writes the sequence of each job that it did into a file, 8 bytes each, before it asks for the
next one.
"""

import os
import sys

import p2pmsg


def main(endpoint, book):
    written = os.open(book, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for job in p2pmsg.Puller(endpoint, acknowledge="batch"):
        os.write(written, job.sequence.to_bytes(8, "big"))


if __name__ == "__main__":
    main(*sys.argv[1:])
