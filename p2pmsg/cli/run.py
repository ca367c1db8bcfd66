"""`p2pmsg run`: run an app."""

import argparse
import importlib
import importlib.util
import os
import sys
import traceback
from types import ModuleType

from p2pmsg.app import App
from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.command import UsageError, command, flag, note, option
from p2pmsg.cli.reloading import Reloader, end_with_reloader
from p2pmsg.cli.secured import SECURITY, security_of, security_words


@command(
    "run",
    option("app", "where the app is: MODULE:NAME, or MODULE for the name app", "MODULE:APP"),
    flag("--reload", "restart it when a source file changes, for development"),
    option("--reload-dir", "what to watch, with --reload: a directory with its subdirectories; may "
           "be repeated (default: the current one)", "DIR", kinds.directory, action="append",
           default=None),
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
      p2pmsg run shop.orders --reload
    """
    has_reloader = end_with_reloader()  # whatever the settings say, which are its settings, too
    if arguments.reload_dir is not None and not arguments.reload and not has_reloader:
        raise UsageError("--reload-dir goes with --reload")
    if arguments.reload and not has_reloader:
        words = ["run", arguments.app]
        if arguments.stop_timeout is not None:
            words += ["--stop-timeout", str(arguments.stop_timeout)]
        words += security_words(arguments)
        return Reloader(words, arguments.reload_dir or ["."]).run()
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
    path = path or "app"
    parts = [*name.split("."), *path.split(".")]
    is_file = "/" in name or name.endswith(".py")
    if is_file or not all(part.isidentifier() for part in parts):
        hint = ": a module, not a file" if is_file else ""
        raise UsageError(f"take MODULE:APP, such as prices:app, not {target!r}{hint}")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    found: object = _import(name)
    for part in path.split("."):
        if not hasattr(found, part):
            raise UsageError(f"the module {name!r} has no {path!r}; {_apps_in(name)}")
        found = getattr(found, part)
    if not isinstance(found, App):
        kind = type(found).__name__
        raise UsageError(f"{target!r} is no p2pmsg.App, but of type {kind}; {_apps_in(name)}")
    return found


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            where = f"in {os.getcwd()} or where Python looks"
            raise UsageError(f"there is no module {error.name!r} {where}") from error
        _print(error)
        raise UsageError(f"the module {name!r} cannot be imported: {error}") from error
    except Exception as error:
        _print(error)
        what = f"{type(error).__name__}: {error}"
        raise UsageError(f"the module {name!r} cannot be imported: {what}") from error
    except SystemExit as error:
        raise UsageError(
            f"the module {name!r} has called sys.exit; put what is not for the app under "
            "if __name__ == '__main__'"
        ) from error


def _print(error: Exception) -> None:
    """Print the traceback from the user's own code on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and _is_ours(trace.tb_frame.f_code):
        trace = trace.tb_next
    traceback.print_exception(error.with_traceback(trace))


def _is_ours(code: object) -> bool:
    file = getattr(code, "co_filename", "")
    return file == __file__ or file.startswith("<frozen importlib") or "importlib" in file


def _apps_in(name: str) -> str:
    names = [key for key, value in vars(sys.modules[name]).items() if isinstance(value, App)]
    return f"its apps are {', '.join(names)}" if names else "it has no app"
