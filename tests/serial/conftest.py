"""Fixtures of the tests that need one process."""

import pytest

from compcoll.core import _cpu


@pytest.fixture(params=_cpu.available_levels())
def level(request):
    """Each instruction-set level of this processor in turn, as the one in use; its name."""
    before = _cpu.level()
    _cpu.set_level(request.param)
    yield request.param
    _cpu.set_level(before)
