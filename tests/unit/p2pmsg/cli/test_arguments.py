import contextlib
import math
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from p2pmsg.cli import COMMANDS, arguments, main
from p2pmsg.cli.command import Command
from p2pmsg.cli.table import load, load_all
from p2pmsg.start import Start

TCP, PORT_0 = "tcp://127.0.0.1:5556", "tcp://127.0.0.1:0"
CAPACITY = ["capacity", "--rate", "5", "--size", "1"]
HERE = "."
SOMEWHERE = ["--from", "tcp://127.0.0.1:1", "--listen", "tcp://127.0.0.1:0"]

WRONG = {
    "no command": ([], "name a command"),
    "unknown command": (["watch"], "there is no command 'watch'"),
    "mistyped command": (["replay"], "there is no command 'replay'; did you mean 'relay'?"),
    "mistyped command of a group": (["log", "dmp"], "did you mean 'dump'?"),
    "nothing like a command": (["qqq"], "there is no command 'qqq'; there are demo, pub, sub,"),
    "help: unknown command": (["help", "watch"], "watch"),
    "help: mistyped command": (["help", "pubb"], "did you mean 'pub'?"),
    "help: unknown command of a group": (["help", "log", "watch"], "log watch"),
    "help: mistyped command of a group": (["help", "log", "verfy"], "did you mean 'log verify'?"),
    "access: no command": (["access"], "name a command: check (p2pmsg access --help says more)"),
    "unknown option": (["--bogus"], "--bogus"),
    "sub: no endpoint": (["sub"], "ENDPOINT"),
    "sub: endpoint without scheme": (["sub", "127.0.0.1:5556"], "127.0.0.1:5556"),
    "sub: endpoint without port": (["sub", "tcp://127.0.0.1"], "port"),
    "sub: port too high": (["sub", "tcp://127.0.0.1:70000"], "70000"),
    "sub: second endpoint is wrong": (["sub", f"{TCP},tcp://x"], "tcp://x"),
    "sub: empty endpoint": (["sub", ""], "ENDPOINT"),
    "sub: wildcard host": (["sub", "tcp://*:5556"], "wildcard"),
    "sub: port 0": (["sub", "tcp://127.0.0.1:0"], "port 0"),
    "sub: inproc": (["sub", "inproc://feed"], "inproc"),
    "sub: memory": (["sub", "memory://feed"], "memory"),
    "sub: empty topic": (["sub", TCP, ""], "TOPIC"),
    "sub: topic with a star inside": (["sub", TCP, "a**"], "a*"),
    "sub: topic too long": (["sub", TCP, "t" * 256], "255"),
    "sub: unknown option": (["sub", TCP, "--bogus"], "--bogus"),
    "sub: abbreviated option": (["sub", TCP, "--stat"], "--stat"),
    "sub: start in words": (["sub", TCP, "--start", "yesterday"], "yesterday"),
    "sub: start without zone": (["sub", TCP, "--start", "2024-08-09T12:00:00"], "zone"),
    "sub: start a date": (["sub", TCP, "--start", "2024-08-09"], "zone"),
    "sub: no such day": (["sub", TCP, "--start", "2024-02-30T00:00:00Z"], "2024-02-30"),
    "sub: negative start": (["sub", TCP, "--start", "-5"], "-5"),
    "sub: start too high": (["sub", TCP, "--start", str(2**63)], str(2**63)),
    "sub: negative count": (["sub", TCP, "--count", "-1"], "-1"),
    "sub: count 0": (["sub", TCP, "--count", "0"], "at least 1"),
    "sub: count no number": (["sub", TCP, "--count", "ten"], "'ten'"),
    "sub: count of 5,000 digits": (["sub", TCP, "--count", "9" * 5000], "whole number"),
    "sub: negative timeout": (["sub", TCP, "--timeout", "-1"], "-1"),
    "sub: timeout nan": (["sub", TCP, "--timeout", "nan"], "nan"),
    "sub: timeout inf": (["sub", TCP, "--timeout", "inf"], "inf"),
    "sub: timeout without value": (["sub", TCP, "--timeout"], "--timeout"),
    "sub: name too long": (["sub", TCP, "--name", "n" * 256], "255"),
    "sub: line break": (["sub", TCP, "--count", "1\n2"], "1\\n2"),
    "sub: unknown field": (["sub", TCP, "--format", "{topic} {price}"], "no field {price}, but"),
    "sub: format without a field": (["sub", TCP, "--format", "{}"], "no field {}"),
    "sub: part of a field": (["sub", TCP, "--format", "{value.real}"], "no field {value.real}"),
    "sub: format not closed": (["sub", TCP, "--format", "{topic"], "'}'"),
    "sub: format of a field": (["sub", TCP, "--format", "{sequence:zz}"], "format"),
    "sub: field in a field": (["sub", TCP, "--format", "{topic:{key}}"], "within another"),
    "sub: two forms": (["sub", TCP, "--format", "x", "--timestamps"], "not allowed with"),
    "pub: two keys": (["pub", TCP, "t", "--key", "k", "--key-field", "f"], "not allowed with"),
    "pub: recovery": (["pub", TCP, "t", "--recovery", "x"], "--recovery: missing scheme"),
    "pub: no topic": (["pub", TCP], "TOPIC"),
    "pub: prefix as topic": (["pub", TCP, "trades.*"], "prefix"),
    "pub: two topics": (["pub", TCP, "a", "b"], "b"),
    "pub: bad endpoint": (["pub", "pgm://127.0.0.1:1", "t"], "pgm"),
    "pub: two endpoints": (["pub", f"{TCP},{TCP}", "t"], "5556,tcp"),
    "pub: inproc": (["pub", "inproc://feed", "t"], "inproc"),
    "pub: negative wait": (["pub", TCP, "t", "--wait", "-1"], "at least 0"),
    "pub: negative linger": (["pub", TCP, "t", "--linger", "-0.1"], "-0.1"),
    "pub: close-timeout no number": (["pub", TCP, "t", "--close-timeout", "x"], "'x'"),
    "pub: name too long": (["pub", "tcp://127.0.0.1:0", "t", "--name", "n" * 256], "255"),
    "demo: positional": (["demo", "file"], "file"),
    "demo: missing file": (["demo", "--input", "/nonexistent/feed"], "No such file"),
    "demo: a directory": (["demo", "--input", "/"], "directory"),
    "demo: output in no directory": (["demo", "--output", "/nonexistent/bars.csv"], "no directory"),
    "demo: output is a directory": (["demo", "--output", "/"], "directory"),
    "demo: empty output": (["demo", "--output", ""], "--output"),
    "demo: no trades": (["demo", "--trades", "0"], "at least 1"),
    "demo: no time": (["demo", "--seconds", "0"], "0.1 seconds at least"),
    "demo: trades no number": (["demo", "--trades", "1e5"], "1e5"),
    "demo: input and trades": (["demo", "--trades", "5", "--input", "/dev/null"], "--trades"),
    "log: no command": (["log"], "name a command: ls, dump, verify"),
    "log: unknown command": (["log", "list"], "list"),
    "log: unknown option": (["log", "--bogus"], "--bogus"),
    "ls: no directory": (["log", "ls"], "DIR"),
    "ls: it is not there": (["log", "ls", "/nonexistent"], "no such directory"),
    "ls: a file": (["log", "ls", "/dev/null"], "it is no directory"),
    "ls: two directories": (["log", "ls", HERE, "/tmp"], "/tmp"),
    "ls: disk in words": (["log", "ls", HERE, "--disk", "large"], "'large'"),
    "ls: negative disk": (["log", "ls", HERE, "--disk", "-1"], "-1"),
    "ls: abbreviated option": (["log", "ls", HERE, "--js"], "--js"),
    "dump: no directory": (["log", "dump"], "DIR"),
    "dump: topic too long": (["log", "dump", HERE, "t" * 256], "255"),
    "dump: from in words": (["log", "dump", HERE, "--from", "earliest"], "'earliest'"),
    "dump: from without zone": (["log", "dump", HERE, "--from", "2024-08-09T12:00:00"], "zone"),
    "dump: negative to": (["log", "dump", HERE, "--to", "-5"], "a sequence from 0 to 2**63 - 1,"),
    "dump: count 0": (["log", "dump", HERE, "--count", "0"], "at least 1"),
    "dump: session no hex": (["log", "dump", HERE, "--session", "xyz"], "'xyz'"),
    "dump: session too long": (["log", "dump", HERE, "--session", "0" * 17], "16"),
    "dump: line break": (["log", "dump", HERE, "--count", "1\n2"], "1\\n2"),
    "verify: it is not there": (["log", "verify", "/nonexistent"], "no such directory"),
    "verify: empty name": (["log", "verify", ""], "no such directory"),
    "replay: no endpoint": (["log", "replay", HERE], "ENDPOINT"),
    "replay: bad endpoint": (["log", "replay", HERE, "pgm://127.0.0.1:1"], "pgm"),
    "replay: speed 0": (["log", "replay", HERE, PORT_0, "--speed", "0"], "'0'"),
    "replay: negative speed": (["log", "replay", HERE, PORT_0, "--speed", "-1"], "-1"),
    "replay: speed nan": (["log", "replay", HERE, PORT_0, "--speed", "nan"], "nan"),
    "replay: speed in words": (["log", "replay", HERE, PORT_0, "--speed", "fast"], "'fast'"),
    "replay: negative wait": (["log", "replay", HERE, PORT_0, "--wait-for", "-1"], "at least 0"),
    "replay: timeout inf": (["log", "replay", HERE, PORT_0, "--timeout", "inf"], "inf"),
    "repair: no directory": (["log", "repair"], "DIR"),
    "truncate: no directory": (["log", "truncate"], "DIR"),
    "truncate: it is not there": (["log", "truncate", "/nonexistent", "--keep", "1"], "no such"),
    "truncate: nothing is to go": (["log", "truncate", HERE], "--before TIME, --keep BYTES"),
    "truncate: before a sequence": (["log", "truncate", HERE, "--before", "5"], "a time such as"),
    "truncate: before in words": (
        ["log", "truncate", HERE, "--before", "today"], "must be a time such as"
    ),
    "truncate: no zone": (["log", "truncate", HERE, "--before", "2024-08-09"], "zone"),
    "truncate: keep in words": (["log", "truncate", HERE, "--keep", "half"], "'half'"),
    "truncate: negative keep": (["log", "truncate", HERE, "--keep", "-1"], "-1"),
    "truncate: after": (["log", "truncate", HERE, "--after", "2024-08-09T00:00:00Z"], "--after"),
    "capacity: no rate": (["capacity", "--size", "1", "--disk", "1"], "--rate"),
    "capacity: no size": (["capacity", "--rate", "1", "--disk", "1"], "--size"),
    "capacity: nothing asked": (CAPACITY, "--disk"),
    "capacity: both asked": ([*CAPACITY, "--disk", "1", "--window", "1s"], "--window"),
    "capacity: rate 0": (["capacity", "--rate", "0", "--size", "1", "--disk", "1"], "above 0"),
    "capacity: rate in bytes": ([*CAPACITY, "--disk", "1", "--rate", "5MB"], "'5MB'"),
    "capacity: size too large": ([*CAPACITY, "--disk", "1", "--size", "2GiB"], "1GiB"),
    "capacity: unknown unit": ([*CAPACITY, "--disk", "5 XB"], "'5 XB'"),
    "capacity: number missing": ([*CAPACITY, "--disk", "GB"], "'GB'"),
    "capacity: too much": ([*CAPACITY, "--disk", "1e99"], "at most 1e18"),
    "capacity: window 0": ([*CAPACITY, "--window", "0h"], "above 0"),
    "capacity: window of months": ([*CAPACITY, "--window", "2months"], "'2months'"),
    "capacity: per-frame 0": ([*CAPACITY, "--disk", "1", "--per-frame", "0"], "at least 1"),
    "capacity: positional": ([*CAPACITY, "--disk", "1", "more"], "more"),
    "push without endpoint": (["push"], "ENDPOINT"),
    "push to a wildcard of pull": (["pull", "tcp://*:5557"], "wildcard"),
    "priority": (["push", "ipc://x", "--priority", "10"], "at most 9"),
    "prefetch": (["pull", "ipc://x", "--prefetch", "0"], "at least 1"),
    "command": (["pull", "ipc://x", "--", "/no/such"], "no command '/no/such'"),
    "where": (["dead-letters", "ls"], "required: WHERE\n"),
    "action": (["dead-letters", "frobnicate", "x"], "invalid choice"),
    "no sequences": (["dead-letters", "retry", "x"], "needs sequences, or --all"),
    "both": (["dead-letters", "purge", "x", "1", "--all"], "sequences and --all exclude one"),
    "no ids": (["hook", "dead-letters", "retry", "."], "needs ids, or --all"),
    "ids and all": (["hook", "dead-letters", "purge", ".", "msg_1", "--all"], "ids and --all excl"),
    "value": (["request", "ipc://x", "t", "{", "--json"], "not JSON"),
    "completion: another shell": (["completion", "csh"], "invalid choice: 'csh'"),
    "request: datagrams": (["request", "udp://239.1.1.1:5000", "t"], "take tcp:// or ipc://"),
    "pull: datagrams": (["pull", "mold://239.1.1.1:5000"], "take tcp:// or ipc://"),
    "push: datagrams": (["push", "udp://239.1.1.1:5000"], "take tcp:// or ipc://"),
    "respond: nothing to run": (["respond", "ipc://x", "t"], "give --echo, or -- and a command"),
    "respond: both": (["respond", "ipc://x", "t", "--echo", "--", "cat"], "give --echo, or --"),
    "respond: command": (["respond", "ipc://x", "t", "--", "/no/such"], "no command '/no/such'"),
    "respond: prefix": (["respond", "ipc://x", "t.*", "--echo"], "prefix"),
    "relay: nothing": (["relay"], "the following arguments are required: --from, --listen"),
    "relay: no place to listen": (["relay", *SOMEWHERE[:2]], "required: --listen"),
    "relay: no upstream": (["relay", "--from", "x", *SOMEWHERE[2:]], "--from: missing scheme"),
    "relay: a wildcard upstream": (["relay", "--from", "tcp://*:1", *SOMEWHERE[2:]], "--from"),
    "relay: a topic": (["relay", *SOMEWHERE, "--topics", ""], "--topics"),
    "relay: fsync without a log": (["relay", *SOMEWHERE, "--fsync", "always"], "fsync goes with"),
    "relay: an unknown fsync": (["relay", *SOMEWHERE, "--log", "x", "--fsync", "often"], "--fsync"),
    "relay: a size": (["relay", *SOMEWHERE, "--retention", "3x"], "a number of bytes such as"),
    "relay: a datagram endpoint": (
        ["relay", *SOMEWHERE[:2], "--listen", "udp://239.0.0.1:5000"], "for a relay",
    ),
    "relay: a word too many": (["relay", *SOMEWHERE, "more"], "unknown arguments: more"),
}  # fmt: skip
GROUPS = {"": COMMANDS, "log": ("ls", "dump", "verify", "repair", "replay", "truncate")}
COMMAND_NAMES = [each.name for each in load_all() if isinstance(each, Command)]


def prog_of(argv):
    """Return the longest beginning of `argv` that names a command, as errors begin."""
    for words in (argv[:2], argv[:1]):
        if " ".join(words) in (*COMMAND_NAMES, "log", "access"):
            return f"p2pmsg {' '.join(words)}: "
    return "p2pmsg: "


@pytest.mark.parametrize(("argv", "names"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_get_one_line_and_status_2(argv, names, capsys):
    status = main(argv)

    printed = capsys.readouterr()
    assert status == 2
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.endswith("\n")
    assert printed.err.startswith(prog_of(argv))
    assert names in printed.err


@pytest.mark.parametrize("command", COMMAND_NAMES)
def test_help_of_each_command_has_an_example(command, capsys):
    assert main([*command.split(), "--help"]) == 0

    printed = capsys.readouterr().out
    assert re.search(rf"( |\| )p2pmsg {command}\b", printed.partition("For example:\n")[2])


@pytest.mark.parametrize(("group", "names"), GROUPS.items(), ids=["all", "log"])
def test_help_names_every_command(group, names, capsys):
    assert main([*group.split(), "--help"]) == 0

    printed = capsys.readouterr().out
    assert all(re.search(rf"\n    {name}\s", printed) for name in names)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_summary_of_each_command_is_the_first_line_of_its_docstring(name):
    assert load(name).name == name
    assert COMMANDS[name][1] == load(name).summary


@pytest.mark.parametrize("words", [[], ["sub"], ["log"], ["log", "ls"]], ids=" ".join)
def test_help_of_a_command_is_what_its_option_prints(words, capsys):
    assert main(["help", *words]) == 0
    printed = capsys.readouterr()
    assert main([*words, "--help"]) == 0
    assert printed == capsys.readouterr()


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


def test_several_endpoints_are_separated_by_commas():
    assert arguments.connect_endpoints("tcp://a:1,ipc:///tmp/b") == ["tcp://a:1", "ipc:///tmp/b"]


@pytest.mark.parametrize("text", ["*", "trades", "trades.*", "ümlaut"])
def test_topics_and_prefixes(text):
    assert arguments.topic_or_prefix(text) == text


def test_a_failure_at_run_time_gets_one_line_and_status_1(capsys):
    assert main(["sub", "ipc:///tmp/nobody-publishes-here", "--timeout", "0"]) == 1

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "p2pmsg sub: no message for 0 s; 0 came\n"


def test_pull_gives_up_like_sub_where_nobody_is_there(capsys):
    assert main(["pull", "ipc:///tmp/nobody-pushes-here", "--timeout", "0"]) == 1

    said = "p2pmsg pull: no job for 0 s: nobody answers at ipc:///tmp/nobody-pushes-here\n"
    assert capsys.readouterr() == ("", said)


def test_a_directory_that_cannot_be_bound_in_is_reported_in_one_line(capsys):
    assert main(["pub", "ipc:///nonexistent/socket", "t"]) == 1

    printed = capsys.readouterr()
    assert printed.err.startswith("p2pmsg pub: ")
    assert printed.err.count("\n") == 1


def test_the_handler_of_sigterm_is_put_back():
    before = signal.getsignal(signal.SIGTERM)

    with contextlib.suppress(SystemExit):
        main(["sub", "ipc:///tmp/nobody-publishes-here", "--timeout", "0"])

    assert signal.getsignal(signal.SIGTERM) is before


BYTES = {
    "0": 0, "128": 128, "1_000": 1000, "1e6": 10**6, "500GB": 500 * 10**9, "500 gb": 500 * 10**9,
    "500G": 500 * 10**9, "1.5k": 1500, "4KiB": 4096, "64MiB": 64 * 2**20, "2Ti": 2 * 2**40,
    "0.1GB": 10**8, "7B": 7,
}  # fmt: skip


@pytest.mark.parametrize(("text", "count"), BYTES.items(), ids=BYTES)
def test_bytes_have_units(text, count):
    assert arguments.byte_count(text) == count


RATES = {"50000": 50_000, "50k": 50_000, "1.5M": 1_500_000, "0.5": 0.5, "2k/s": 2000, "3/s": 3}


@pytest.mark.parametrize(("text", "rate"), RATES.items(), ids=RATES)
def test_rates_have_units(text, rate):
    assert arguments.rate(text) == rate


SPANS = {"90": 90, "90s": 90, "30min": 1800, "24h": 86_400, "7d": 604_800, "0.5w": 302_400}


@pytest.mark.parametrize(("text", "seconds"), SPANS.items(), ids=SPANS)
def test_spans_have_units(text, seconds):
    assert arguments.span(text) == seconds


def test_a_place_is_a_sequence_or_a_time():
    assert arguments.position("20240809") == Start("sequence", 20240809)
    assert arguments.position("1970-01-01T00:00:01.5Z") == Start("time", 1_500_000_000)


def test_a_moment_is_a_time_in_ns():
    assert arguments.moment("1970-01-01T00:00:01.5Z") == 1_500_000_000
    assert arguments.moment("1970-01-01T02:00:00+02:00") == 0


def test_a_session_is_hexadecimal_and_a_speed_may_be_max():
    assert arguments.session_prefix("00000000000000fF") == arguments.session_prefix("0xff")
    assert arguments.session_prefix("C34c") == "c34c"
    assert (arguments.speed("max"), arguments.speed("0.5")) == (math.inf, 0.5)
