import contextlib
import math
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from p2pmsg.cli import COMMANDS, arguments, main
from p2pmsg.cli.table import load, split
from p2pmsg.start import Start

TCP, PORT_0 = "tcp://127.0.0.1:5556", "tcp://127.0.0.1:0"
HERE = "."

WRONG = {
    "no command": ([], "name a command"),
    "mistyped command": (["replay"], "there is no command 'replay'; did you mean 'relay'?"),
    "mistyped command of a group": (["log", "dmp"], "did you mean 'log dump'?"),
    "nothing like a command": (["qqq"], "there is no command 'qqq'; there are demo, pub, sub,"),
    "a group alone": (["log"], "name a command: log ls, log dump"),
    "mistyped, near": (["pubb"], "did you mean 'pub'?"),
    "unknown option": (["--bogus"], "--bogus"),
    "sub: no endpoint": (["sub"], "ENDPOINT"),
    "sub: endpoint without scheme": (["sub", "127.0.0.1:5556"], "127.0.0.1:5556"),
    "sub: wildcard host": (["sub", "tcp://*:5556"], "wildcard"),
    "sub: empty topic": (["sub", TCP, ""], "topic"),
    "sub: abbreviated option": (["sub", TCP, "--stat"], "--stat"),
    "sub: start in words": (["sub", TCP, "--start", "yesterday"], "yesterday"),
    "sub: count 0": (["sub", TCP, "--count", "0"], "from 1 to"),
    "sub: timeout nan": (["sub", TCP, "--timeout", "nan"], "nan"),
    "sub: line break": (["sub", TCP, "--count", "1\n2"], "1\\n2"),
    "sub: unknown field": (["sub", TCP, "--format", "{topic} {price}"], "no field {price}, but"),
    "sub: format not closed": (["sub", TCP, "--format", "{topic"], "'}'"),
    "sub: two forms": (["sub", TCP, "--format", "x", "--json"], "not allowed with"),
    "pub: recovery": (["pub", PORT_0, "t", "--recovery", "x"], "missing scheme"),
    "pub: prefix as topic": (["pub", TCP, "trades.*"], "prefix"),
    "demo: missing file": (["demo", "--input", "/nonexistent/feed"], "No such file"),
    "demo: output in no directory": (["demo", "--output", "/nonexistent/bars.csv"], "no directory"),
    "demo: input and trades": (["demo", "--trades", "5", "--input", "/dev/null"], "--trades"),
    "ls: it is not there": (["log", "ls", "/nonexistent"], "No such file"),
    "dump: from in words": (["log", "dump", HERE, "--from", "earliest"], "'earliest'"),
    "replay: speed 0": (["log", "replay", HERE, PORT_0, "--speed", "0"], "'0'"),
    "truncate: nothing is to go": (["log", "truncate", HERE], "--before TIME, --keep BYTES"),
    "truncate: before a sequence": (["log", "truncate", HERE, "--before", "5"], "a time such as"),
    "batch": (["push", "ipc://x", "--acknowledge", "batch", "--log", "x"], "log must be left out"),
    "command": (["pull", "ipc://x", "--", "/no/such"], "no command '/no/such'"),
    "both": (["dead-letters", "purge", "x", "1", "--all"], "exclude one another"),
    "no ids": (["hook", "dead-letters", "retry", "."], "or --all"),
    "value": (["request", "ipc://x", "t", "{", "--json"], "not JSON"),
    "listen: a stream": (["listen", TCP], "take udp:// or mold://"),
    "respond: nothing to run": (["respond", "ipc://x", "t"], "give --echo, or -- and a command"),
    "relay: nothing": (["relay"], "the following arguments are required: --from, --listen"),
    "access: no file": (["access", "check", "/no/f", "b", "subscribe", "t"], "No such file"),
}  # fmt: skip


@pytest.mark.parametrize(("argv", "names"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_get_one_line_and_status_2(argv, names, capsys):
    status = main(argv)

    printed = capsys.readouterr()
    name, _ = split(argv)
    assert status == (1 if "No such file" in names and name == "access check" else 2)
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert printed.err.startswith(f"p2pmsg {name}: " if name in COMMANDS else "p2pmsg: ")
    assert names in printed.err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_has_its_summary_and_an_example(command, capsys):
    assert load(command).summary == COMMANDS[command][1]
    assert main([*command.split(), "--help"]) == 0

    printed = capsys.readouterr().out
    assert re.search(rf"( |\| )p2pmsg {command}\b", printed.partition("For example:\n")[2])


@pytest.mark.parametrize("group", ["", "log"])
def test_help_names_every_command(group, capsys):
    assert main([*group.split(), "--help"]) == 0

    names = [name for name in COMMANDS if name.startswith(group)]
    printed = capsys.readouterr().out
    assert all(re.search(rf"\n    {name}\s", printed) for name in names)


@pytest.mark.long
def test_the_list_of_commands_imports_none_of_them():
    """So that `p2pmsg --help` and the completion of commands come at once."""
    code = "import sys; from p2pmsg.cli import main; main(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"argparse", "msgspec", "zmq", "p2pmsg.errors"} & set(done.stdout.split())


def test_version(capsys):
    assert main(["--version"]) == 0

    assert capsys.readouterr().out.startswith("p2pmsg ")


STARTS = {
    "latest": "latest",
    "earliest": "earliest",
    "0": 0,
    "20240809": 20240809,
    "2024-08-09T12:00:00Z": datetime(2024, 8, 9, 12, tzinfo=UTC),
    "2024-08-09T14:00:00.5+02:00": datetime(2024, 8, 9, 12, 0, 0, 500_000, tzinfo=UTC),
}


@pytest.mark.parametrize(("text", "value"), STARTS.items(), ids=STARTS)
def test_start_is_a_word_a_sequence_or_a_time(text, value):
    assert arguments.start(text) == value


def test_a_place_is_a_sequence_or_a_time_and_a_moment_a_time():
    assert arguments.position("20240809") == Start("sequence", 20240809)
    assert arguments.position("1970-01-01T00:00:01.5Z") == Start("time", 1_500_000_000)
    assert arguments.moment("1970-01-01T02:00:00+02:00") == 0


NOBODY = {
    "sub": "no message for 0 s; 0 came; nobody answers at ipc:///tmp/nobody-is-here",
    "pull": "no job for 0 s: nobody answers at ipc:///tmp/nobody-is-here",
}


@pytest.mark.parametrize(("command", "said"), NOBODY.items(), ids=NOBODY)
def test_a_failure_at_run_time_gets_one_line_and_status_1(command, said, capsys):
    before = signal.getsignal(signal.SIGTERM)
    with contextlib.suppress(SystemExit):
        assert main([command, "ipc:///tmp/nobody-is-here", "--timeout", "0"]) == 1

    assert capsys.readouterr() == ("", f"p2pmsg {command}: {said}\n")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_speed_is_a_number_or_max():
    assert (arguments.speed("max"), arguments.speed("0.5")) == (math.inf, 0.5)
