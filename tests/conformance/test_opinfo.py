"""PyTorch's own operator samples through `jit`, the first ones of each operator in every mode.

All of them, by hand: `python run_opinfo.py --jit thermit:jit` in the suite, with the options below.
"""

import pytest

from tests.conformance.suite import counts, needs_suite, run

# mode: (options, samples of each operator and type, samples there must be at least)
MODES = {
    "float32, float64, int64, bool": (("--dtype", "float32,float64,int64,bool", "--strides"), 1, 1500),
    "bfloat16, float16, uint8, int32, complex64": (("--dtype", "bfloat16,float16,uint8,int32,complex64"), 1, 1500),
    "in place": (("--mode", "inplace"), 2, 150),
    "gradients": (("--mode", "grad"), 2, 700),
}


@needs_suite
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", MODES)
def test_samples_of_every_operator(mode):
    options, limit, least = MODES[mode]
    done = run("run_opinfo.py", *options, "--limit", str(limit), "--jobs", "1")
    passed, failed = counts(done)
    assert failed == 0, done.stdout[-5000:]
    assert passed > least, "the suite has lost samples"
