"""What `make test ONLY=…` and `make test-long` choose, tried with pytest itself."""

import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests import areas

TESTS = Path(__file__).parents[1]
FILES = [path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")]
TRIED = """
import pytest

@pytest.mark.long
def test_soak():
    pass

@pytest.mark.rounds(3, 40)
def test_kills(rounds):
    print("rounds:", rounds)

def test_once():
    pass
"""


def collect(folder, *arguments):
    """Return pytest's status and what it ran of the tests above, in the words of `-v -s`."""
    (folder / "test_tried.py").write_text(TRIED)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider",
               "-v", "-s", *arguments]  # fmt: skip
    if not any("::" in argument for argument in arguments):
        command.append("test_tried.py")
    done = subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(TESTS.parent)}, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def test_each_pattern_of_an_area_finds_a_file():
    patterns = [pattern for chosen in areas.AREAS.values() for pattern in chosen]

    assert not [
        pattern for pattern in patterns if not any(fnmatch(path, pattern) for path in FILES)
    ]


def test_each_file_is_in_an_area_and_what_is_in_no_other_is_the_spines():
    assert not [path for path in FILES if not areas.belongs(path, list(areas.AREAS))]
    assert areas.belongs("integration/test_something_new.py", ["spine"])
    assert not areas.belongs("integration/test_queue_log.py", ["spine"])
    assert areas.belongs("integration/test_queue_log.py", ["log"])
    assert areas.belongs("integration/test_queue_log.py", ["cli", "queue"])


def test_areas_have_other_names_and_commas_between_them():
    assert areas.parse("pubsub, metrics,queue") == ["spine", "statsd", "queue"]


@pytest.mark.parametrize("text", ["nope", "queue,nope", "queue,", " "])
def test_an_unknown_area_is_refused_with_all_that_there_are(text):
    with pytest.raises(ValueError, match=r"no area .*there are") as raised:
        areas.parse(text)

    assert all(area in str(raised.value) for area in [*areas.AREAS, *areas.ALIASES])


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "ran", "count"),
    [
        ((), ["kills", "once"], 3),
        (("--long",), ["soak", "kills"], 40),
        (("-m", "long"), ["soak"], None),
        (("test_tried.py::test_soak",), ["soak"], None),
        (("test_tried.py::test_soak", "test_tried.py::test_once"), ["soak", "once"], None),
    ],
    ids=["make test", "make test-long", "-m long", "by its name", "by names"],
)
def test_what_is_long_runs_where_it_is_wanted(tmp_path, arguments, ran, count):
    status, said = collect(tmp_path, "-o", "markers=long\nrounds", *arguments)

    assert status == 0, said
    for name in ("soak", "kills", "once"):
        assert (f"::test_{name} " in said) == (name in ran), said
    assert count is None or f"rounds: {count}\n" in said


@pytest.mark.long
def test_pytest_refuses_an_unknown_area(tmp_path):
    status, said = collect(tmp_path, "--only", "nope")

    assert status == 4
    assert "no area 'nope'; there are spine, recovery, log" in said
