"""Every option: name, default, environment variable, whether it is part of the compile key, one line of doc."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields, replace
from typing import Any

STAGES = ("simplify",)  # what `skip` can leave out


def _option(default: Any, variable: str, in_key: bool, doc: str) -> Any:
    return field(default=default, metadata={"variable": variable, "in_key": in_key, "doc": doc})


@dataclass(frozen=True, slots=True)
class Config:
    """The options.  `Config.from_environment()` reads the variables; docs/options.md is made from this table."""

    debug: int = _option(0, "THERMIT_DEBUG", False, "print on stderr, up to: 1 compilations, 2 graphs, 3 kernels, 4 loops, 5 LLVM, 6 assembly")
    skip: tuple[str, ...] = _option((), "THERMIT_SKIP", True, "stages to leave out, by name (simplify), to bisect a fault")
    disable: bool = _option(False, "THERMIT_DISABLE", False, "run everything eagerly")
    log_compiles: bool = _option(False, "THERMIT_LOG_COMPILES", False, "say on stderr what is compiled, why, and how long it took")
    raise_faults: bool = _option(False, "THERMIT_RAISE", False, "raise thermit's own faults instead of warning and running eagerly (tests do)")
    verify: bool = _option(False, "THERMIT_VERIFY", False, "check the invariants of the IR after every stage (tests do)")

    @staticmethod
    def from_environment(environment: dict[str, str] | None = None) -> Config:
        """The options with what the environment sets.  Raises ValueError that names the variable."""
        env = os.environ if environment is None else environment
        changes: dict[str, Any] = {}
        for f in fields(Config):
            text = env.get(f.metadata["variable"], "")
            if not text:
                continue
            try:
                if isinstance(f.default, tuple):
                    changes[f.name] = tuple(t.strip() for t in text.split(",") if t.strip())
                elif isinstance(f.default, bool):
                    changes[f.name] = {"0": False, "false": False, "1": True, "true": True}[text.lower()]
                else:
                    changes[f.name] = int(text)
            except (KeyError, ValueError):
                raise ValueError(f"{f.metadata['variable']}={text!r}: not a {type(f.default).__name__}") from None
        return Config(**changes)

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if type(value) is not type(f.default):
                raise TypeError(f"{f.name}={value!r}: must be of type {type(f.default).__name__}")
        unknown = [name for name in self.skip if name not in STAGES]
        if unknown:
            raise ValueError(f"THERMIT_SKIP: no stage is called {', '.join(unknown)}; those that can be left out are {', '.join(STAGES)}")

    @property
    def key(self) -> tuple[Any, ...]:
        """What of the options is part of the compile key."""
        return tuple(getattr(self, f.name) for f in fields(self) if f.metadata["in_key"])


current = Config.from_environment()


def configure(**changes: Any) -> Config:
    """Changes options for the whole process; gives the options as they were.  Raises TypeError, ValueError."""
    global current
    known = [f.name for f in fields(Config)]
    if unknown := [name for name in changes if name not in known]:
        raise TypeError(f"no option is called {', '.join(unknown)}; there are {', '.join(known)}")
    before, current = current, replace(current, **changes)
    return before
