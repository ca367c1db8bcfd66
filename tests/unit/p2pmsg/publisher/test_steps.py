"""Work in steps: what is yielded is called, and its result or its error goes back."""

import pytest

from p2pmsg.publisher.steps import run_steps


def test_results_and_errors_go_back_into_the_work():
    made = []

    def fails():
        raise OSError("no disk")

    def work():
        made.append((yield lambda: 1))
        try:
            yield fails
        except OSError as error:
            made.append(str(error))
        return made

    assert run_steps(work()) == [1, "no disk"]


def test_work_without_a_step_returns_its_result():
    def work():
        return "done"
        yield

    assert run_steps(work()) == "done"


def test_an_error_that_nobody_catches_is_raised():
    def work():
        yield lambda: 1 / 0

    with pytest.raises(ZeroDivisionError):
        run_steps(work())
