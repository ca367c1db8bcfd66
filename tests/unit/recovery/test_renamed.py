import inspect
import warnings
from dataclasses import replace

import pytest

from recovery import CursorConfig, NackConfig, ReplayConfig
from recovery._renamed import renamed_arguments, renamed_fields


def test_a_former_name_is_converted_and_warned_of_where_it_is_used():
    with pytest.warns(DeprecationWarning, match="retry_ms is retry_interval now") as warned:
        config = NackConfig(retry_ms=5)
    assert config == NackConfig(retry_interval=0.005)
    assert warned[0].filename == __file__
    with pytest.warns(DeprecationWarning, match=r"NackConfig\.retry_ms is retry_interval now"):
        assert config.retry_ms == 5.0
    with pytest.warns(DeprecationWarning, match="age_ms_max is age_max"):
        assert ReplayConfig(age_ms_max=None).age_ms_max is None
    with (
        pytest.warns(DeprecationWarning, match="fsync_interval_ms is"),
        pytest.raises(ValueError, match="fsync_interval must"),
    ):
        CursorConfig("a.cursor", fsync_interval_ms="100")


def test_present_names_warn_of_nothing_and_are_the_signature():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert replace(NackConfig(delay=0.5), retry_max=2.0).delay == 0.5
    assert not [name for name in inspect.signature(NackConfig).parameters if name.endswith("_ms")]


def test_replace_takes_a_former_name():
    with pytest.warns(DeprecationWarning, match="delay_ms is delay"):
        assert replace(NackConfig(delay=0.5), delay_ms=20).delay == 0.02


def test_a_function_takes_a_former_name_or_the_present_one():
    @renamed_arguments(wait_us="wait", age_s="age")
    def call(*, wait: float = 1.0, age: float = 1.0) -> tuple[float, float]:
        return wait, age

    with pytest.warns(DeprecationWarning, match="in seconds") as warned:
        assert call(wait_us=20, age_s=3) == (0.00002, 3)
    assert len(warned) == 2
    with pytest.raises(TypeError, match="wait_us is wait now"):
        call(wait_us=20, wait=1.0)


def test_an_attribute_that_may_be_set_takes_its_former_name():
    @renamed_fields(delay_ms="delay")
    class Proxy:
        def __init__(self, delay: float = 0.0) -> None:
            self.delay = delay

    proxy = Proxy()
    with pytest.warns(DeprecationWarning, match="Proxy.delay_ms is delay"):
        proxy.delay_ms = 20
    assert proxy.delay == 0.02
