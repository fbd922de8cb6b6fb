"""The error table.  A message says what, then the user's line where one is to blame, then what to do about it.

`ThermitError` puts them together; the table below is the reference page (docs/errors.md is made from these docstrings).
"""

from __future__ import annotations


class ThermitError(Exception):
    """Base of all errors that thermit itself raises (eager's own exceptions pass through unchanged)."""

    def __init__(self, what: str, where: str = "", advice: str = "") -> None:
        self.what, self.where, self.advice = what, where, advice
        super().__init__("\n  ".join(line for line in (what, where, advice) if line))


class DataDependentError(ThermitError):
    """Python read the value of a tensor (`if`, `item`, `tolist`, `torch.equal`), or a result's size depends on values (`x[mask]`, `nonzero`,
    `unique`, `masked_select`), under `strict=True` or in `trace`, `lower`, `compile`."""


class UnsupportedError(ThermitError):
    """A call that thermit can only run eagerly, under `strict=True` or in `trace`, `lower`, `compile`: a tensor that requires grad, a
    subclass, another device, an array of numpy, Python state that is written, an operation that looks whether it succeeded
    (torch.linalg.inv) or raises while it is traced."""


class LeakedStandInError(ThermitError):
    """A stand-in outlived its trace: the function stored an intermediate tensor where it is found later (a global, a list)."""


class UnexpectedCompileError(ThermitError):
    """Under `on_miss="error"`, a call that no compiled variant fits, once there is one (from `f.compile`, or from the first call)."""


class TypeRuleError(ThermitError):
    """Operands do not fit a primitive: a fault in a lowering, a rule or a pass."""


class VerifyError(ThermitError):
    """A stage made something invalid: a fault of thermit's.  Please report it with the output of `explain`."""


class CompileError(ThermitError):
    """LLVM refused the code: a fault of thermit's.  Please report it with the output of `explain`."""
