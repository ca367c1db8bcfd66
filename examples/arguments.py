"""What the examples' command lines share: `--help`, and one line for a wrong argument."""

import argparse
import ipaddress
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """Shows an example's docstring as its help, and refuses wrong arguments in one line."""

    def __init__(self, text: str | None) -> None:
        super().__init__(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and exit with status 2."""
        self.exit(2, f"{self.prog}: {message}; --help says more\n")


def none(text: str | None) -> None:
    """Parse the command line of an example that takes no argument."""
    Parser(text).parse_args()


def optional(text: str | None, name: str, kind: Callable[[str], Any], default: Any = None) -> Any:
    """Return the one argument that an example takes, or `default`."""
    parser = Parser(text)
    shown = "" if default is None else f"default: {default}"
    parser.add_argument("value", metavar=name, nargs="?", type=kind, default=default, help=shown)
    return parser.parse_args().value


def endpoint(text: str) -> str:
    """Check an endpoint at which the processes of an example meet."""
    import transports  # not above: where p2pmsg is missing, the example's import of it says so

    try:
        found = transports.parse_endpoint(text).require_connectable()
    except transports.EndpointError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if found.scheme not in ("tcp", "ipc", "udp"):
        raise argparse.ArgumentTypeError(f"take tcp, ipc or udp: {text!r}")
    return text


def multicast_endpoint(text: str) -> str:
    """Check a multicast group's endpoint."""
    host = endpoint(text).removeprefix("udp://").partition(":")[0]
    try:
        is_group = text.startswith("udp://") and ipaddress.ip_address(host).is_multicast
    except ValueError:
        is_group = False
    if not is_group:
        raise argparse.ArgumentTypeError(f"take udp://GROUP:PORT of a multicast group: {text!r}")
    return text


def url(text: str) -> str:
    """Check a URL to which webhooks go."""
    if not text.startswith(("http://", "https://")) or " " in text:
        raise argparse.ArgumentTypeError(f"take http://… or https://…: {text!r}")
    return text


def port(text: str) -> int:
    """Check a TCP port."""
    if not text.isascii() or not text.isdecimal() or not 0 < int(text) < 65_536:
        raise argparse.ArgumentTypeError(f"not a port from 1 to 65535: {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """Check a number of seconds."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 <= number <= 86_400.0:
        raise argparse.ArgumentTypeError(f"not a number of seconds from 0 to 86400: {text!r}")
    return number


def folder(text: str) -> str:
    """Check that there is such a folder."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text!r}")
    return text


def file(text: str) -> str:
    """Check that there is such a file."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text!r}")
    return text


def picture(text: str) -> str:
    """Check the name of a picture that is to be drawn."""
    if not text.endswith((".png", ".svg")):
        raise argparse.ArgumentTypeError(f"take a name that ends in .png or .svg: {text!r}")
    folder(str(Path(text).parent))
    return text
