"""What is logged never raises, and says from where it comes."""

import ast
import logging
from pathlib import Path

import pytest

from tests.unit.raising_log import raising_log
from transports.own_log import own_log

ROOT = Path(__file__).parents[3]
LOGS_BY_ITSELF = {
    "p2pmsg/cli/__init__.py",
    "p2pmsg/http/serving.py",
    "transports/own_log.py",
}
"""The second one passes errors on to uvicorn's own log."""


@pytest.mark.parametrize("how", ["filter", "handler"])
def test_a_log_that_raises_harms_nobody_and_is_shown(how, capsys):
    with raising_log(how):
        own_log.warning("%d jobs wait", 3)
        try:
            raise ValueError("the failure")
        except ValueError:
            own_log.exception("a round failed")

    shown = capsys.readouterr().err
    assert f"a {how} of the application's" in shown
    assert "3 jobs wait" in shown
    assert "a round failed" in shown


def test_ctrl_c_in_a_handler_passes():
    def interrupt(record):
        raise KeyboardInterrupt

    log = logging.getLogger("p2pmsg")
    log.addFilter(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            own_log.warning("x")
    finally:
        log.removeFilter(interrupt)


def test_a_record_has_the_place_of_its_caller(caplog):
    own_log.warning("one")
    own_log.error("two %s", "words", exc_info=ValueError("three"))
    try:
        raise ValueError("five")
    except ValueError:
        own_log.exception("six")

    assert [record.getMessage() for record in caplog.records] == [
        "one", "two words", "six",
    ]  # fmt: skip
    assert {record.filename for record in caplog.records} == {Path(__file__).name}
    assert {record.funcName for record in caplog.records} == {
        "test_a_record_has_the_place_of_its_caller"
    }
    assert {record.name for record in caplog.records} == {"p2pmsg"}
    assert "three" in caplog.text
    assert "ValueError: five" in caplog.text


def test_all_of_us_log_by_it():
    """`getLogger` raises what the application's filters raise, and a thread ends by that."""
    found = set()
    for path in (*(ROOT / "p2pmsg").rglob("*.py"), *(ROOT / "transports").rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "getLogger" in text else ():
            if isinstance(node, ast.Attribute) and node.attr == "getLogger":
                found.add(path.relative_to(ROOT).as_posix())

    assert found == LOGS_BY_ITSELF
