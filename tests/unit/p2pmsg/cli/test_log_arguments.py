import math

import pytest

from p2pmsg.cli import arguments, main
from p2pmsg.start import Start

TCP = "tcp://127.0.0.1:0"
CAPACITY = ["capacity", "--rate", "5", "--size", "1"]
LOG_COMMANDS = ("ls", "dump", "verify", "replay", "truncate")
HERE = "."

WRONG = {
    "log: no command": (["log"], "name a command: ls, dump, verify, replay or truncate"),
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
    "dump: negative to": (["log", "dump", HERE, "--to", "-5"], "-5"),
    "dump: count 0": (["log", "dump", HERE, "--count", "0"], "at least 1"),
    "dump: session no hex": (["log", "dump", HERE, "--session", "xyz"], "'xyz'"),
    "dump: session too long": (["log", "dump", HERE, "--session", "0" * 17], "16"),
    "dump: line break": (["log", "dump", HERE, "--count", "1\n2"], "1\\n2"),
    "verify: it is not there": (["log", "verify", "/nonexistent"], "no such directory"),
    "verify: empty name": (["log", "verify", ""], "no such directory"),
    "replay: no endpoint": (["log", "replay", HERE], "ENDPOINT"),
    "replay: bad endpoint": (["log", "replay", HERE, "pgm://127.0.0.1:1"], "pgm"),
    "replay: speed 0": (["log", "replay", HERE, TCP, "--speed", "0"], "'0'"),
    "replay: negative speed": (["log", "replay", HERE, TCP, "--speed", "-1"], "-1"),
    "replay: speed nan": (["log", "replay", HERE, TCP, "--speed", "nan"], "nan"),
    "replay: speed in words": (["log", "replay", HERE, TCP, "--speed", "fast"], "'fast'"),
    "replay: negative wait": (["log", "replay", HERE, TCP, "--wait-for", "-1"], "at least 0"),
    "replay: timeout inf": (["log", "replay", HERE, TCP, "--timeout", "inf"], "inf"),
    "truncate: no directory": (["log", "truncate"], "DIR"),
    "truncate: it is not there": (["log", "truncate", "/nonexistent", "--keep", "1"], "no such"),
    "truncate: nothing is to go": (["log", "truncate", HERE], "--before TIME, --keep BYTES"),
    "truncate: before a sequence": (["log", "truncate", HERE, "--before", "5"], "a time such as"),
    "truncate: before in words": (["log", "truncate", HERE, "--before", "today"], "'today'"),
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
}


def command_of(argv):
    if argv[0] != "log":
        return argv[0]
    return " ".join(argv[:2]) if argv[1:2] and argv[1] in LOG_COMMANDS else "log"


@pytest.mark.parametrize(("argv", "names"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_get_one_line_and_status_2(argv, names, capsys):
    status = main(argv)

    printed = capsys.readouterr()
    assert status == 2
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith(f"p2pmsg {command_of(argv)}: ")
    assert names in printed.err


@pytest.mark.parametrize("command", ["capacity", *(f"log {name}" for name in LOG_COMMANDS)])
def test_help_of_each_command_has_an_example(command, capsys):
    assert main([*command.split(), "--help"]) == 0

    assert f"  p2pmsg {command} " in capsys.readouterr().out


def test_help_of_log_names_every_command(capsys):
    assert main(["log", "--help"]) == 0

    printed = capsys.readouterr().out
    assert all(f"    {command} " in printed for command in LOG_COMMANDS)


def test_without_the_extra_it_is_said_in_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "recovery.log", None)

    for name, *more in (["ls"], ["dump"], ["verify"], ["replay", TCP], ["truncate", "--keep", "1"]):
        assert main(["log", name, str(tmp_path), *more]) == 2
        printed = capsys.readouterr()
        assert printed.err.startswith(f"p2pmsg log {name}: needs the package ")
        assert printed.err.endswith(": pip install 'p2pmsg[log]'\n")
        assert (printed.out, printed.err.count("\n")) == ("", 1)


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
    assert arguments.session("00000000000000fF") == arguments.session("0xff") == 255
    assert (arguments.speed("max"), arguments.speed("0.5")) == (math.inf, 0.5)
