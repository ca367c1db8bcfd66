"""`p2pmsg run`: run an app."""

import argparse
import importlib
import os
import sys
import traceback

from p2pmsg.app import App
from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.command import UsageError, command, note, option
from p2pmsg.cli.secured import SECURITY, security_of


@command(
    "run",
    option("app", "where the app is: MODULE:NAME, or MODULE for the name app", "MODULE:APP"),
    option("--stop-timeout", "how long handlers may take to end when it stops, in seconds "
           "(default: as the app says)", "S", kinds.seconds),
    *SECURITY,
    ended_by=(),
)  # fmt: skip
def run(arguments: argparse.Namespace) -> int:
    """Run an app: its handlers for messages, jobs, requests and timers.

    The module is looked for in the current directory first. At SIGTERM or Ctrl-C the app reads no
    more, lets the handlers that run finish, commits, and ends with status 0; with status 1 where a
    handler failed whose error policy is to stop, or did not end in time. A second Ctrl-C waits for
    no handler. With --security, handlers whose peers have no security of their own have these keys.

    For example:
      p2pmsg run prices:app
      p2pmsg run shop.orders
    """
    security = security_of(arguments)
    app = load_app(arguments.app)
    if arguments.stop_timeout is not None:
        app.stop_timeout = arguments.stop_timeout
    if security is not None:
        app.security = security
    handlers = app.stats()
    if not handlers:
        raise UsageError(f"{arguments.app!r} has no handlers")
    note("run", f"{arguments.app} runs with {', '.join(each.name for each in handlers)}")
    app.run()
    return 0


def load_app(target: str) -> App:
    """Import the module and return the app that `target`, `MODULE:NAME`, names.

    Raises:
        UsageError: there is no such module, no such name, or it is no app; the module failed, whose
            traceback is printed.

    """
    name, _, path = target.partition(":")
    if "/" in name or name.endswith(".py"):
        raise UsageError(f"take MODULE:APP, such as prices:app, not {target!r}: not a file")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(name)
    except Exception as error:
        if not (isinstance(error, ModuleNotFoundError) and error.name == name):
            traceback.print_exc()
        raise UsageError(f"the module {name!r} cannot be imported: {error!r}") from error
    except SystemExit as error:
        raise UsageError(
            f"the module {name!r} has called sys.exit; put what is not for the app under "
            "if __name__ == '__main__'"
        ) from error
    found = getattr(module, path or "app", None)
    if not isinstance(found, App):
        apps = [key for key, value in vars(module).items() if isinstance(value, App)]
        what = f"its apps are {', '.join(apps)}" if apps else "it has no app"
        raise UsageError(f"{name!r} has no p2pmsg.App {path or 'app'!r}; {what}")
    return found
