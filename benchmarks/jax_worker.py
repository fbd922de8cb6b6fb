"""`python -m benchmarks.jax_worker PEER CASE THREADS`, run by a Python that has JAX; as many threads as the process may use cores."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from benchmarks.cases import Case, find
from benchmarks.jax_functions import FUNCTIONS
from benchmarks.worker import Peer, bound, serve


def make(peer: str, case_name: str, threads: str) -> tuple[Peer, Case]:
    case = find(case_name)
    jax.config.update("jax_enable_x64", any(i.dtype == "float64" for i in case.inputs))
    jax.block_until_ready(jax.numpy.zeros(1))  # the client is made here, not in the first call

    def compiled(_: Sequence[Array], weights: Sequence[Array]) -> Callable[..., Any]:
        return jax.jit(bound(FUNCTIONS[case.function], weights))

    made = Peer(compiled, jax.numpy.asarray, np.asarray, jax.block_until_ready, case.group != "call")
    return made, case


if __name__ == "__main__":
    serve(lambda: make(*sys.argv[1:]))
