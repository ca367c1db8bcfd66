"""What commands take and say: arguments, completion, keys, programs, texts."""

import contextlib
import math
import os
import re
import signal
import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from p2pmsg.cli import COMMANDS, arguments, main, program
from p2pmsg.cli.log_replay import Pace
from p2pmsg.cli.program import run_program, stop
from p2pmsg.cli.pubsub import reader
from p2pmsg.cli.table import load, split
from p2pmsg.cli.text import bytes_text, value_text
from p2pmsg.security import read_key_file
from p2pmsg.start import Start
from transports.curve import fingerprint, key_text

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
    "pub: two keys": (["pub", TCP, "t", "--key", "x", "--key-field", "y"], "not allowed with"),
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


TYPED = {
    "": "demo", "su": "sub", "sub --js": "--json", "sub tcp://a:1 --ti": "--timeout",
    "log ": "ls", "log ls --js": "--json", "push --acknowledge b": "batch",
    "dead-letters r": "retry",
    "completion f": "fish", "--v": "--version",
    "pub --sec": "--security", "log truncate --k": "--keep",
}  # fmt: skip
NOTHING = [
    "pub --log ", "sub ", "sub --count ", "nonsense ", "log nonsense --", "sub --nothing-like",
]  # fmt: skip


@pytest.mark.parametrize(("typed", "wanted"), TYPED.items(), ids=TYPED)
def test_what_was_typed_is_completed(typed, wanted, capsys):
    assert main(["completion", "words", "--", *typed.split(" ")]) == 0
    assert wanted in capsys.readouterr().out.split()


@pytest.mark.parametrize("typed", NOTHING)
def test_what_is_a_file_or_unknown_is_left_to_the_shell(typed, capsys):
    assert main(["completion", "words", "--", *typed.split(" ")]) == 0
    assert capsys.readouterr().out.strip() == ""


def test_bash_completes_what_was_typed(capsys):
    assert main(["completion", "bash"]) == 0
    script = (
        capsys.readouterr().out
        + f"""
p2pmsg() {{ {sys.executable} -m p2pmsg "$@"; }}
COMP_WORDS=(p2pmsg log ls --js); COMP_CWORD=3
_p2pmsg; echo "${{COMPREPLY[*]}}"
"""
    )
    done = subprocess.run(["bash", "-eu", "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("--json\n", "")


def run(capsys, *words):
    """Return the exit status of a command, and all that it printed."""
    try:
        status = main([*map(str, words)])
    except SystemExit as error:
        status = error.code
    captured = capsys.readouterr()
    return status, captured.out + captured.err


def test_a_key_is_made_once_shown_and_trusted(capsys, tmp_path):
    path, known = tmp_path / "id", tmp_path / "known"
    assert run(capsys, "key", "new", "--key", path)[0] == 0
    keys = read_key_file(path)
    public, secret = key_text(keys.public), key_text(keys.secret)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    shown = run(capsys, "key", "show", "--key", path)[1]
    assert shown.split() == [public, "fingerprint", fingerprint(keys.public)]
    status, text = run(capsys, "key", "new", "--key", path)
    assert status == 2
    assert secret not in text + shown
    assert run(capsys, "trust", "add", "a", public, "tcp://h:1", "--trust", known)[0] == 0
    assert run(capsys, "trust", "ls", "--trust", known) == (0, f"a {public} tcp://h:1\n")
    other = tmp_path / "other"
    run(capsys, "key", "new", "--key", other)
    new = read_key_file(other).public
    status, text = run(capsys, "trust", "add", "a", key_text(new), "--trust", known)
    assert status == 1
    assert fingerprint(new) in text
    assert fingerprint(keys.public) in text
    assert run(capsys, "trust", "add", "a", key_text(new), "--replace", "--trust", known)[0] == 0
    assert run(capsys, "trust", "remove", "a", "--trust", known)[0] == 0
    assert run(capsys, "trust", "ls", "--trust", known) == (0, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["key", "show", "--key", "none"], "'none': No such file or directory"),
        (["key", "new", "--key", "file/id"], "': Not a directory"),
        (["trust", "ls", "--trust", "."], "'.': Is a directory"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(capsys, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    status, text = run(capsys, *words)
    assert status == 1
    assert text.startswith(f"p2pmsg {words[0]} {words[1]}: '")
    assert text.endswith(f"{said}\n")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["bars-1", "subscribe", "quotes.us"], 0, "rule 1 gives 'quotes*'"),
        (["bars-1", "subscribe", "*"], 1, "'bars-1' subscribe '*': denied: no rule gives it"),
        (["eve", "subscribe", "trades"], 1, "no rule gives it"),
    ],
)
def test_access_check_says_which_rule_decides(tmp_path, words, status, said, capsys):
    rule = '[[rule]]\nwho = ["bars-*"]\nsubscribe = ["trades", "quotes*"]\n'
    (tmp_path / "access.toml").write_text(rule)
    found, text = run(capsys, "access", "check", tmp_path / "access.toml", *words)
    assert found == status
    assert said in text
    assert "is not in [peers] of this file" in text
    (tmp_path / "access.toml").write_text(f"{rule}read = ['x']\n")
    status, text = run(capsys, "access", "check", tmp_path / "access.toml", *words)
    assert status == 2
    assert "rule 1, read" in text


S = 10**9


def waits(pace, appended, now_s=100.0):
    """Return the waits of a replay that takes no time except for them."""
    found = []
    for appended_ns in appended:
        found.append(pace.wait_s(appended_ns, now_s=now_s))
        now_s += found[-1]
    return found


@pytest.mark.parametrize(
    ("speed", "appended_s", "expected"),
    [
        (1.0, [5, 6, 6, 9], [0.0, 1.0, 0.0, 3.0]),
        (10.0, [0, 10, 30], [0.0, 1.0, 2.0]),
        (1.0, [10, 11, 3, 4], [0.0, 1.0, 0.0, 1.0]),  # a clock that went back counts as no time
    ],
)
def test_waits_are_those_of_the_log_by_the_speed(speed, appended_s, expected):
    assert waits(Pace(speed), [each * S for each in appended_s]) == expected


def test_who_is_late_catches_up():
    pace = Pace(1.0)
    pace.wait_s(0, now_s=0.0)
    assert pace.wait_s(1 * S, now_s=2.5) == 0.0
    assert pace.wait_s(2 * S, now_s=2.5) == 0.0
    assert pace.wait_s(3 * S, now_s=2.5) == 0.5


@pytest.mark.long
def test_ctrl_c_while_it_starts_leaves_no_process(tmp_path):
    script = f'echo $$ > {tmp_path}/"$(date +%N)"; kill -INT $PPID; exec sleep 100'
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            run_program(["sh", "-c", script], "value", timeout=60)
    started = [int(path.read_text()) for path in Path(tmp_path).iterdir()]
    assert len(started) == 3
    for process in started:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_the_status_the_output_and_a_time_out_are_returned():
    counts = ["sh", "-c", "read text; echo got $text; exit 3"]
    found = run_program(counts, "it\n", timeout=60, output=subprocess.PIPE)
    assert found == ("exit status 3", 3, b"got it\n")
    wrong, status, output = run_program(["sleep", "100"], b"", timeout=0.05)
    assert (wrong, status, output) == ("killed after 0.05 s", -signal.SIGKILL, b"")


@pytest.mark.long
def test_one_that_does_not_end_when_it_is_asked_to_is_killed(monkeypatch):
    monkeypatch.setattr(program, "_TERMINATE_S", 0.1)
    script = "trap '' TERM; echo begun; while :; do sleep 0.05; done"
    stubborn = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE)
    assert stubborn.stdout.readline() == b"begun\n"
    stop(stubborn)
    stubborn.stdout.close()
    assert stubborn.returncode == -signal.SIGKILL


TEXTS = {
    "text": ("hello", "hello"),
    "bytes that are text": ("grüße".encode(), "grüße"),
    "bytes that are not": (b"\xff\x00", "base64:/wA="),
    "no bytes": (b"", ""),
    "int": (7, "7"),
    "float": (2.5, "2.5"),
    "nan": (float("nan"), "null"),
    "none": (None, "null"),
    "bool": (True, "true"),
    "dict": ({"a": [1, "ü"]}, '{"a":[1,"ü"]}'),
    "text with a line break": ("a\nb", "a\nb"),
}


@pytest.mark.parametrize(("value", "text"), TEXTS.values(), ids=TEXTS)
def test_a_value_is_printed(value, text):
    assert value_text(value) == text


def test_a_terminal_is_not_sent_control_characters():
    assert value_text(b"a\x1b[2J\tb", to_terminal=True) == "a\\x1b[2J\tb"


BYTES = {
    0: "0 B", 999: "999 B", 1000: "1 kB", 1536: "1.54 kB", 999_999: "1 MB", 5e11: "500 GB",
    123.4: "123 B",
}  # fmt: skip


@pytest.mark.parametrize(("count", "text"), BYTES.items(), ids=map(str, BYTES))
def test_bytes_for_people(count, text):
    assert bytes_text(count) == text


LINES = {
    "plain": ((False, None), b"a b", (b"a b", None)),
    "plain with key": ((False, "s"), b'{"s":"X"}', (b'{"s":"X"}', "X")),
    "json": ((True, None), b"[1,2]", ([1, 2], None)),
    "json with key": ((True, "s"), b'{"s":"X"}', ({"s": "X"}, "X")),
    "key is a number": ((True, "s"), b'{"s":7}', ({"s": 7}, "7")),
}


@pytest.mark.parametrize(("how", "line", "read"), LINES.values(), ids=LINES)
def test_a_line_becomes_a_value_and_a_key(how, line, read):
    assert reader(*how)(line) == read


BAD_LINES = {
    "no json": ((True, None), b"{", "is not JSON"),
    "an empty line": ((True, None), b"", "is not JSON"),
    "no utf-8": ((True, None), b'"\xff"', "is not JSON"),
    "no object": ((False, "s"), b"[1]", "no JSON object"),
    "no such field": ((True, "s"), b'{"a":1}', "'s'"),
    "key is null": ((True, "s"), b'{"s":null}', "None"),
    "key is a bool": ((True, "s"), b'{"s":true}', "True"),
}


@pytest.mark.parametrize(("how", "line", "names"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_line_that_cannot_be_read_says_why(how, line, names):
    with pytest.raises(ValueError, match=r"JSON|field") as caught:
        reader(*how)(line)

    assert names in str(caught.value)
