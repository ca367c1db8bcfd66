"""Key files and known peers for the tests of peers with keys."""

import os

from p2pmsg import Security
from p2pmsg.security import new_keys, write_key_file
from transports.curve import key_text


class Peers:
    """Makes peers with keys of their own, that know those they are introduced to."""

    def __init__(self, folder):
        self.folder = folder
        self.keys = {}

    def security(self, name, *known, access=None):
        """Return the security of a peer that knows others."""
        if name not in self.keys:
            self.keys[name] = new_keys()
            write_key_file(self.folder / name, self.keys[name])
        made = Security(self.folder / name, self.folder / f"{name}.known", access)
        for other in known:
            self.security(other)
            made.known.add(other, self.text(other))
        return made

    def options(self, name):
        """Return the options by which a command has a peer's keys."""
        return [
            "--security",
            str(self.folder / name),
            "--trust",
            str(self.folder / f"{name}.known"),
        ]

    def text(self, name):
        """Return the public key of a peer."""
        return key_text(self.keys[name].public)

    def secret(self, name):
        """Return the secret key of a peer as text: what must stand nowhere."""
        return key_text(self.keys[name].secret)

    def pinned(self, endpoint, name):
        """Return an endpoint at which a peer has to hold its key."""
        return f"{endpoint}?key={self.text(name)}"


def rewrite(path, text):
    """Change a file that is watched as a whole: who looks meanwhile must not find it empty."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    os.replace(new, path)


def take_job(puller, mode, timeout=60.0):
    """Take a job of a queue or a pipeline, and confirm it; return its value."""
    job = puller.receive(timeout)
    if mode == "each":
        job.ack()
    else:
        puller.commit()
    return job.value
