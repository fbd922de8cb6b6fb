"""thermit: JAX's jit for PyTorch.

    @thermit.jit
    def f(x, y): ...

Reading order of the house: api (the callable) > capture (the function becomes a graph) > compiler (one page, one line a stage) >
passes, schedule, loops, codegen (the stages) > runtime (machine code, native entry) ; aten (PyTorch's vocabulary) ; ir (the graph).
"""

import gc

# Modules make objects that stay.  A collection while they are loaded frees nothing and looks at everything that torch has made as well:
# it would be half the time of the import.  Then all that there is counts as old, which is what freeze and unfreeze do together in no time:
# otherwise the first call would pay for the collection.
_collects = gc.isenabled()
gc.disable()
try:
    from thermit.api import TensorSpec, disable, empty_cache, jit, log_compiles
    from thermit.capture.recording import ThermitWarning
    from thermit.config import configure
    from thermit.errors import (
        CompileError,
        DataDependentError,
        LeakedStandInError,
        ThermitError,
        TypeRuleError,
        UnexpectedCompileError,
        UnsupportedError,
        VerifyError,
    )
finally:
    if _collects:
        gc.enable()
    if not gc.get_freeze_count():  # else the program has frozen objects of its own
        gc.freeze()
        gc.unfreeze()

__version__ = "0.1.0"

__all__ = [
    "CompileError",
    "DataDependentError",
    "LeakedStandInError",
    "TensorSpec",
    "ThermitError",
    "ThermitWarning",
    "TypeRuleError",
    "UnexpectedCompileError",
    "UnsupportedError",
    "VerifyError",
    "configure",
    "disable",
    "empty_cache",
    "jit",
    "log_compiles",
]
