"""What `make test ONLY=…` and `make test-long` choose, tried with pytest itself."""

from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests import areas

TESTS = Path(__file__).parents[1]
FILES = [path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")]


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
