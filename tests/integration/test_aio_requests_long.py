"""What threaded requesters and responders are tested with, at those of asyncio."""

import pytest

from tests.integration.looped import make_requester, make_responder
from tests.integration.test_requests import (
    test_a_remote_exception_arrives_with_its_type_and_text,
    test_a_request_is_retried_at_another_responder,
    test_a_retry_does_not_do_the_work_twice,
    test_a_typed_responder_answers_what_does_not_fit_with_its_path,
    test_an_answer_comes_back,
    test_an_answer_survives_a_cut_connection,
    test_garbage_is_counted,
    test_nobody_answers,
    test_several_threads_ask_at_once,
    test_who_asks_and_never_reads_fills_no_memory,
)

__all__ = [
    "make_requester",
    "make_responder",
    "test_a_remote_exception_arrives_with_its_type_and_text",
    "test_a_request_is_retried_at_another_responder",
    "test_a_retry_does_not_do_the_work_twice",
    "test_a_typed_responder_answers_what_does_not_fit_with_its_path",
    "test_an_answer_comes_back",
    "test_an_answer_survives_a_cut_connection",
    "test_garbage_is_counted",
    "test_nobody_answers",
    "test_several_threads_ask_at_once",
    "test_who_asks_and_never_reads_fills_no_memory",
]

pytestmark = pytest.mark.long
