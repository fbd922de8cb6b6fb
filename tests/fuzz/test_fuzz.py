"""Random programs: jit and eager agree (a sample here; `python -m tests.fuzz --programs 20000` for the long run)."""

import pytest

import thermit
from tests.fuzz.compare import fault
from tests.fuzz.programs import program


@pytest.mark.parametrize("block", range(10))
@pytest.mark.parametrize("family", ["exact", "smooth"])
def test_random_programs(family, block):
    for seed in range(1_000_000 + 20 * block, 1_000_000 + 20 * block + 20):
        made = program(family, seed)
        how = fault(made, thermit.jit)
        assert how is None, f"{family} {seed}: {how}\ninputs {made.inputs}\n{made.source}"
