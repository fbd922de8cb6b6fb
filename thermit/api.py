"""jit: the callable that a user holds.

    call -> native entry (checks, runs, returns)            runtime/entry.py
         -> slow path below, when no variant fits:
            disabled? inside a trace? cannot be compiled?   the function itself
            a variant that the native entry does not cover  its program
            else: trace -> compile -> install the variant   (the cache is filled last: an interrupt leaves nothing half done)

A variant is found by the key of the call and by its guards.  A signature that cannot be compiled is remembered as eager, with the reason.
"""

from __future__ import annotations

import functools
import inspect
import os
import pickle
import sys
import time
import warnings
from collections.abc import Callable, Container, Sequence
from types import MethodType
from typing import Any, TypeVar, overload

import numpy as np
import torch
from torch.utils._pytree import tree_map

from thermit import config
from thermit.capture.difference import difference, distance, found
from thermit.capture.facts import Watcher, watch
from thermit.capture.known import argument_guards
from thermit.capture.recorder import Recorder
from thermit.capture.recording import Restart, ThermitWarning, told, user_line
from thermit.capture.signature import Call, FlatCall, Guard, Held, Source, argument_roots, argument_tensors, flatten_call, holds, reads_call
from thermit.capture.specs import input_specs
from thermit.capture.structure import Substitution, Template, result_template
from thermit.capture.trace import Live, Trace, active, trace
from thermit.capture.values import Leaves, NotStatic, freeze
from thermit.compiler import Stages, compile_graph, kernel_count
from thermit.errors import ThermitError, UnexpectedCompileError, UnsupportedError
from thermit.explain import Explanation, counted, explain
from thermit.learnt import MOST_MOVED, OnMiss, State, Variant
from thermit.records import dataclass
from thermit.runtime import entry as native
from thermit.runtime import torch_abi
from thermit.runtime.library import runtime
from thermit.runtime.program import Stopped
from thermit.runtime.vectorcall import called_natively, connect
from thermit.stages import Compiled, Lowered, Traced
from thermit.switches import disable, empty_cache, is_disabled, log_compiles
from thermit.twin import eager_now, left_alone, original, twin_of

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of an argument, in place of a tensor: `f.trace(TensorSpec((8, 16)))`."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32


_SKIPPED = torch._C._dynamo.eval_frame._FrameAction.SKIP


class JitFunction:
    """A function that runs compiled.  Calling it is calling the native entry: objects of `_Native` bring its address; where there is no
    such class, each has one of its own."""

    __wrapped__: Callable[..., Any]
    _state: State
    _entry: native.Entry
    __call__: Callable[..., Any]

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else _Bound(self, instance)

    def __repr__(self) -> str:
        return f"<thermit.jit of {self.__wrapped__!r}>"

    def __reduce__(self) -> Any:
        name = self.__dict__.get("__qualname__", "")
        found: Any = sys.modules.get(self.__module__)
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is self:  # it took the name of its function: pickled by that name, as functions are
            return name
        if isinstance(found, JitFunction):
            raise pickle.PicklingError(f"{self!r} cannot be pickled by its name: {self.__module__}.{name} is another jitted function now")
        return self.again(self.__wrapped__)

    def again(self, function: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """What makes a jitted function of another one, with the same options: a callable and its arguments."""
        state = self._state
        return _restored, (function, state.strict, state.max_variants, state.on_miss)

    def __copy__(self) -> JitFunction:
        return self

    def __deepcopy__(self, memo: Any) -> JitFunction:
        return self

    # ------------------------------------------------------------------------------------------ the slow path
    def _slow(self, *args: Any, **kwargs: Any) -> Any:
        function = self.__wrapped__
        if is_disabled() or active() is not None:
            return function(*args, **kwargs)
        flat = flatten_call(args, kwargs)
        eager = flat.eager or self._state.never
        if eager:
            if self._state.strict:
                what, advice = _foreign(function, flat, Call(args, kwargs), eager, "Call the function itself, or without strict=True")
                raise UnsupportedError(f"this call can only run eagerly: {what}", advice=f"{advice}.")
            if flat.foreign and not self._state.told:
                self._state.told = True
                what, advice = _foreign(function, flat, Call(args, kwargs), eager)
                _warn(f"thermit runs {_name(function)} eagerly: {what}\n  {advice}; strict=True makes this an error.")
            return function(*args, **kwargs)
        call = Call(args, kwargs)
        key = (flat.key, config.current.key)
        failed: Guard | None = None
        for variant in self._state.variants.get(key, ()):
            failed = holds(variant.guards, call)
            if failed is not None:
                continue
            if variant.compilation is None:
                return function(*args, **kwargs)
            inputs = variant.inputs(call)
            if inputs is not None:
                return self._run(variant, inputs, call)
        if self._state.changes and self._state.changes_again(key, call):
            return function(*args, **kwargs)
        return self._miss(key, flat, call, failed) if (moved := self._state.for_others(key, call)) is None else self._run_moved(moved, call)

    def _run_moved(self, variant: Variant, call: Call) -> Any:
        """A variant that was made of another for this call's objects."""
        if variant.compilation is None:
            return self.__wrapped__(*call.args, **call.kwargs)
        if self._state.moved_natively < MOST_MOVED:  # what is native is never let go
            self._state.moved_natively += 1
            self._install(variant, _form(variant.template, variant.needs_call), call)
        return self._run(variant, variant.inputs(call) or (), call)

    def _run(self, variant: Variant, inputs: Sequence[torch.Tensor], call: Call) -> Any:
        assert variant.compilation is not None and variant.template is not None
        try:
            results = variant.compilation.program.run(inputs)
        except Stopped:
            return self.__wrapped__(*call.args, **call.kwargs)
        return variant.template.build(results, call)

    def _miss(self, key: Any, flat: FlatCall, call: Call, failed: Guard | None) -> Any:
        """No variant fits: compile one, or do what the options say."""
        state, function = self._state, self.__wrapped__
        eager = eager_now(function)
        if eager and state.strict:
            raise UnsupportedError(f"this call can only run eagerly: {eager}", advice="Call the module itself, or without strict=True.")
        if eager:
            return function(*call.args, **call.kwargs)
        why = self._why(key, failed, call)
        if state.on_miss == "error" and state.compiled:
            what = f"{_name(function)} met a call that no compiled variant fits: {why}"
            raise UnexpectedCompileError(what, advice="Compile for such calls beforehand with f.compile(*args), or use another on_miss.")
        tried = state.live[torch.is_grad_enabled()] >= state.max_variants  # so many signatures could not be compiled: no more are tried
        if (state.on_miss == "eager" and state.compiled) or state.faulty:
            return function(*call.args, **call.kwargs)
        if tried or state.compiled >= state.max_variants:
            self._warn_variants(why, tried)
            return function(*call.args, **call.kwargs)
        with state.lock:
            mark = os.getpid(), key
            busy = mark in state.compiling
            state.compiling.add(mark)
        if busy:  # another thread compiles it
            return function(*call.args, **call.kwargs)
        try:
            return self._compile(key, flat, call, why)
        finally:
            with state.lock:
                state.compiling.discard(mark)

    def _why(self, key: Any, failed: Guard | None, call: Call) -> str:
        """What no variant has that this call has."""
        if failed is not None:
            return found(failed, call)
        keys = [old for old in reversed(self._state.keys) if old != key]
        if not keys:
            return "the first call"
        nearest = min(keys, key=lambda old: (old[1] != key[1], distance(old[0], key[0])))
        return "the options of thermit" if nearest[1] != key[1] else difference(self.__wrapped__, nearest[0], key[0])

    def _warn_variants(self, why: str, tried: bool) -> None:
        state = self._state
        if state.warned:
            return
        if tried:
            reason = next((v.reason for variants in reversed(state.variants.values()) for v in variants if v.reason), "")
            if reason.endswith("requires grad"):  # training is eager, without complaint
                return
            what = f"could not be compiled for {state.max_variants} kinds of calls (max_variants) and runs eagerly for all new ones: {reason}"
        else:
            changing = state.failed_guards[-1] if state.failed_guards else why
            what = f"has been compiled {state.compiled} times (max_variants) and runs eagerly for other calls; what keeps changing: {changing}"
        state.warned = True
        _warn(f"thermit: {_name(self.__wrapped__)} {what}")

    # torch.compile around a jitted function: it compiles neither this nor what is called from here
    torch._C._dynamo.eval_frame.set_code_exec_strategy(_slow.__code__, torch._C._dynamo.eval_frame._FrameExecStrategy(_SKIPPED, _SKIPPED))

    # ------------------------------------------------------------------------------------------ compiling
    def _compile(self, key: Any, flat: FlatCall, call: Call, why: str) -> Any:
        start = time.perf_counter()
        try:
            guards, outcome = capture(self.__wrapped__, flat, call, self._state.strict, told=self._state.changes)
        except Restart as again:
            self._remember(key, Variant(again.guards, again.reason, again.where), why)
            if again.where:
                _warn(told(again.reason, os.path.basename(again.where), reads=False), again.where)
            return self.__wrapped__(*call.args, **call.kwargs)
        if isinstance(outcome, Live):
            variant = Variant(guards, outcome.reason, outcome.line)
            if outcome.reason.startswith("changes "):
                self._state.learn(key, variant)
            self._remember(key, variant, why)
            return outcome.value
        try:
            stages = Stages(config.current)
            stages.seconds["trace"] = time.perf_counter() - start
            compilation = compile_graph(outcome.graph, config.current, stages)
            sources = tuple(slot.source or Held(slot.tensor, "a constant") for slot in outcome.inputs)
            specs = input_specs([slot.tensor for slot in outcome.inputs])
            seconds = time.perf_counter() - start
            variant = Variant(guards, "", "", sources, specs, outcome.template, outcome.calls, compilation, why, seconds, outcome.needs_call)
            self._install(variant, _form(outcome.template, outcome.needs_call), call)
        except Exception as fault:
            return self._fault(fault, call)
        self._remember(key, variant, why)
        self._log(variant)
        return self._run(variant, [slot.tensor for slot in outcome.inputs], call)

    def _remember(self, key: Any, variant: Variant, why: str) -> None:
        state = self._state
        with state.lock:
            state.variants.setdefault(key, []).insert(0, variant)
            if variant.compilation is not None:
                if state.compiled > 0:
                    state.failed_guards.append(why if why != "the first call" else self._why(key, None, _NO_CALL))
                state.compiled += 1
                state.keys.append(key)
            else:
                state.live[torch.is_grad_enabled()] += 1

    def _fault(self, fault: Exception, call: Call) -> Any:
        """A fault of ours: raised in tests and development; otherwise one warning, and the function runs eagerly from now on."""
        if config.current.raise_faults:
            raise fault
        self._state.faulty = True
        _warn(
            f"thermit could not compile {_name(self.__wrapped__)} and runs it eagerly; this is a fault of thermit's, please report it with "
            f"THERMIT_RAISE=1: {type(fault).__name__}: {fault}"
        )
        return self.__wrapped__(*call.args, **call.kwargs)

    def _install(self, variant: Variant, form: Any, call: Call) -> None:
        """Hands the variant to the native entry, where it can check all that the variant depends on."""
        assert variant.compilation is not None
        if runtime() is None or form is None:
            return
        try:
            inputs = set(variant.sources)  # their specs are checked with the tensors
            inputs |= {g.source for g in variant.guards if g.kind == "same" and g.expected in inputs}
            facts = (*argument_guards(self.__wrapped__, call), *(g for g in variant.guards if not (g.kind == "tensor" and g.source in inputs)))
        except NotStatic:
            return
        made = native.Variant(
            len(call.args), tuple(call.kwargs), tuple(zip(variant.sources, variant.specs, strict=True)), facts,
            variant.compilation.program, form, self.__wrapped__, torch_abi.ambient(),
        )  # fmt: skip
        self._entry.install(made)

    def _log(self, variant: Variant) -> None:
        options = config.current
        if options.log_compiles or options.debug:
            assert variant.compilation is not None
            kernels, calls = kernel_count(variant.compilation)
            made = f"{counted(kernels, 'kernel')}, {counted(calls, 'call')}"
            sys.stderr.write(f"thermit: compiled {_name(self.__wrapped__)} in {1000 * variant.seconds:.1f} ms: {made} ({variant.why})\n")

    # ------------------------------------------------------------------------------------------ stages, explanation
    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """The function captured for these arguments (tensors, or TensorSpecs in their place); nothing is computed.

        Raises DataDependentError or UnsupportedError where it cannot be captured as a whole.
        """
        return self._traced(_examples(args, kwargs))

    def _traced(self, call: Call) -> Traced:
        flat = flatten_call(call.args, call.kwargs)
        eager = flat.eager or self._state.never or eager_now(self.__wrapped__)
        if eager:
            what, advice = _foreign(self.__wrapped__, flat, call, eager)
            raise UnsupportedError(f"this call can only run eagerly: {what}", advice=advice and f"{advice}.")
        try:
            guards, outcome = capture(self.__wrapped__, flat, call, strict=True, staged=True)
        except Restart as again:
            raise UnsupportedError(f"this call can only run eagerly: {again.reason}") from None
        assert isinstance(outcome, Trace)
        return Traced.of(_name(self.__wrapped__), outcome, self.__wrapped__, flat.key, guards)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """`trace(...).lower()`."""
        return self.trace(*args, **kwargs).lower()

    def compile(self, *args: Any, **kwargs: Any) -> Compiled:
        """`trace(...).lower().compile()`; calls of this kind find the function compiled from now on, whatever `on_miss` and `max_variants` say."""
        call, start = _examples(args, kwargs), time.perf_counter()
        lowered = self._traced(call).lower()
        traced, key = lowered.traced, (lowered.traced.key, config.current.key)
        known = [v for v in self._state.variants.get(key, ()) if v.compilation is not None and holds(v.guards, call) is None]
        if not any(v.inputs(call) is not None for v in known):
            sources = tuple(slot.source or Held(slot.constant, "a constant") for slot in traced.inputs)
            why, seconds = self._why(key, None, call), time.perf_counter() - start
            variant = Variant(
                traced.guards, "", "", sources, traced.specs, traced.template, traced.calls, lowered.compilation, why, seconds, traced.needs_call
            )
            self._install(variant, _form(traced.template, traced.needs_call), call)
            self._remember(key, variant, why)
            self._log(variant)
        return lowered.compile()

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """What thermit does with this call, as a record whose `str` is readable.  The call is made (once more, eagerly or compiled)."""
        flat = flatten_call(args, kwargs)
        self(*args, **kwargs)
        state = self._state
        eager = flat.eager or state.never or eager_now(self.__wrapped__)
        eager = "; ".join(filter(None, _foreign(self.__wrapped__, flat, Call(args, kwargs), eager)))
        if is_disabled() or active() is not None:
            eager = "thermit is disabled here" if active() is None else "it is called from a function that is traced"
        if eager:
            return explain(_name(self.__wrapped__), None, eager, "", (), tuple(state.failed_guards))
        key, call = (flat.key, config.current.key), Call(args, kwargs)
        for variant in state.variants.get(key, ()):
            if holds(variant.guards, call) is None and (variant.compilation is None or variant.inputs(call) is not None):
                return explain(
                    _name(self.__wrapped__), variant.compilation, variant.reason, variant.line, variant.guards, tuple(state.failed_guards),
                    variant.calls,
                )  # fmt: skip
        last = next(iter(state.variants.get(key, ())), Variant(()))  # what made it eager may be what each call changes
        reason = last.reason or self._left_eager()
        return explain(_name(self.__wrapped__), None, reason, last.line, last.guards, tuple(state.failed_guards))

    def _left_eager(self) -> str:
        """Why a call that no variant fits was not compiled."""
        state = self._state
        if state.faulty:
            return "a fault of thermit's (a warning has told it)"
        if state.on_miss == "eager" and state.compiled:
            return 'no variant fits, and on_miss="eager" compiles no other'
        if state.compiled >= state.max_variants:
            return f"it has been compiled {state.compiled} times (max_variants)"
        if state.live[torch.is_grad_enabled()] >= state.max_variants:
            return f"{state.max_variants} kinds of calls could not be compiled (max_variants), so no other is tried"
        return "the call changes what it was compiled for, or another thread compiles it"


class _Bound(functools.partial[Any]):
    """A jitted function bound to an object, as a method is."""

    @property
    def __self__(self) -> Any:
        return self.args[0]

    @property
    def __func__(self) -> JitFunction:
        assert isinstance(self.func, JitFunction)
        return self.func

    @property
    def __wrapped__(self) -> Any:
        return self.__func__.__wrapped__.__get__(self.args[0])

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        return self.__func__.trace(*self.args, *args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        return self.__func__.lower(*self.args, *args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> Compiled:
        return self.__func__.compile(*self.args, *args, **kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        return self.__func__.explain(*self.args, *args, **kwargs)


def capture(
    function: Callable[..., Any], flat: FlatCall, call: Call, strict: bool, staged: bool = False, told: Container[str] = ()
) -> tuple[tuple[Guard, ...], Trace | Live]:
    """Runs the function once on stand-ins.  The guards that the outcome depends on, and the outcome.  `told`: reasons for no warning."""
    holder: list[Recorder] = []
    given: list[Substitution] = []

    def refuse(reason: str, where: str) -> None:
        if not holder:
            return
        if holder[0].is_open:
            watcher.pause()
            if watcher.again and not strict and not given[0].is_changed:
                raise Restart(reason, tuple(watcher.objects.guards.values()), where)
            holder[0].go_live(reason)
        if watcher.objects.twice is not None:
            watcher.pause()
            holder[0].exchange()
        watcher.resume()

    watcher: Watcher = watch(function, call, refuse)
    watcher.told = told

    def run(recorder: Recorder) -> Any:
        holder.append(recorder)
        substitution = Substitution(call.args, call.kwargs, recorder.known)
        watcher.adopt(substitution.copies)
        given.append(substitution)
        try:
            with substitution as inside, watcher:
                return substitution.given_back(function(*inside.args, **inside.kwargs))
        finally:
            watcher.stop()

    def template(value: Any) -> tuple[Template, list[Any], bool]:
        placed = False

        def place(part: Any) -> Source | None:
            nonlocal placed
            source = watcher.place(part)
            placed = placed or (source is not None and reads_call(source))
            return source

        made, leaves = result_template(value, lambda v: isinstance(v, torch.Tensor), place, watcher.made)
        return made, leaves, placed

    def refusal() -> tuple[str | None, str]:
        facts = watcher.facts()
        return facts.refused, facts.where

    sources = argument_tensors(function, call.args, call.kwargs)
    outcome = trace(run, flat.tensors, sources, watcher, template, refusal, strict=strict, staged=staged)
    return watcher.guards(), outcome


# ---------------------------------------------------------------------------------------------- pieces
def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def _example(value: Any) -> Any:
    return torch.empty(value.shape, dtype=value.dtype) if isinstance(value, TensorSpec) else value


def _examples(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    return Call(tuple(tree_map(_example, a) for a in args), {k: tree_map(_example, a) for k, a in kwargs.items()})


def _warn(text: str, where: str = "") -> None:
    """A warning at the line of the user's that called, or another `file:line`."""
    line = user_line(sys._getframe(1))
    file, number = ("<unknown>", 1) if line is None else (line[0].co_filename, line[1])
    if where:
        file, _, at = where.rpartition(":")
        number = int(at)
    warnings.warn_explicit(ThermitWarning(text), ThermitWarning, file, number)


def _foreign(function: Any, flat: FlatCall, call: Call, eager: str, advice: str = "") -> tuple[str, str]:
    """Why a call runs eagerly and what to do about it: `eager` and `advice`, or the argument, no tensor, that is to blame."""
    for source, value in argument_roots(function, call) if flat.foreign else ():
        try:
            freeze(value, Leaves())
        except NotStatic as why:
            if isinstance(value, np.ndarray):
                return f"the argument {source} is an array of numpy", f"Hand in torch.from_numpy({source}), a tensor over the same memory"
            return f"the argument {source} is, or holds, {why}", "Hand in tensors, numbers, strings, and containers of them"
    return eager, advice


_NO_CALL = Call((), {})


def _form(template: Template | None, needs_call: bool) -> Any:
    """How the native entry builds the result; None where it needs the arguments of the call for that."""
    assert template is not None
    forms: dict[str, Any] = {"none": "none", "tensor": "one", "tuple": "tuple", "list": "list"}
    if template.kind in forms:
        return forms[template.kind]
    return None if needs_call else lambda tensors: template.build(tensors, _NO_CALL)


# ---------------------------------------------------------------------------------------------- jit
@overload
def jit(fn: F, *, strict: bool = ..., max_variants: int = ..., on_miss: OnMiss = ...) -> F: ...
@overload
def jit(fn: None = None, *, strict: bool = ..., max_variants: int = ..., on_miss: OnMiss = ...) -> Callable[[F], F]: ...
def jit(fn: Any = None, *, strict: bool = False, max_variants: int = 8, on_miss: OnMiss = "compile") -> Any:
    """`fn`, compiled for each kind of call that it meets; the results are eager's.

    strict        raise where the function, or a part of it, can only run eagerly, instead of warning once and running it eagerly
    max_variants  how many signatures are compiled before other ones run eagerly, with a warning that names what keeps changing
    on_miss       what a call does that no compiled variant fits: "compile"; once there is one, "eager" or "error"
    """
    if on_miss not in ("compile", "eager", "error"):
        raise ValueError(f"on_miss must be 'compile', 'eager' or 'error', not {on_miss!r}")
    if max_variants < 1:
        raise ValueError(f"max_variants must be at least 1, not {max_variants}")
    if fn is None:
        return functools.partial(jit, strict=strict, max_variants=max_variants, on_miss=on_miss)
    if isinstance(fn, staticmethod | classmethod):
        return type(fn)(jit(fn.__func__, strict=strict, max_variants=max_variants, on_miss=on_miss))
    if isinstance(fn, torch.nn.Module):
        return _jit_module(original(fn), State(strict, max_variants, on_miss))
    if isinstance(fn, JitFunction):
        fn = fn.__wrapped__
    if isinstance(fn, type) and issubclass(fn, torch.nn.Module):
        raise TypeError(f"jit takes a module, not a class of modules: thermit.jit({fn.__name__}(...)), or decorate its forward")
    if not callable(fn) or isinstance(fn, type):
        raise TypeError(f"jit takes a function or a module, not {type(fn).__name__}")
    if isinstance(fn, MethodType) and original(fn.__self__) is not fn.__self__:
        fn = MethodType(fn.__func__, original(fn.__self__))
    generator = inspect.isgeneratorfunction(fn) or inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn)
    return _make(fn, State(strict, max_variants, on_miss, "it is a generator or a coroutine" if generator else ""))


def _jit_module(module: torch.nn.Module, state: State) -> Any:
    """The twin of a module; the module itself where another machinery has taken it."""
    why = left_alone(module)
    if why and state.strict:
        raise UnsupportedError(f"this module can only run as it is: {why}", advice="Give jit the module that it was made of.")
    if why:
        return module
    jitted = _make(module, state)
    return twin_of(module, jitted, jitted._entry.callable)


def _make(fn: Callable[..., Any], state: State) -> JitFunction:
    kind: Any = _Native if runtime() is not None else None
    kind = kind or type("JitFunction", (JitFunction,), {"__module__": __name__})
    self: JitFunction = object.__new__(kind)
    self.__doc__ = getattr(fn, "__doc__", None)
    functools.update_wrapper(self, fn, updated=() if isinstance(fn, torch.nn.Module) else ("__dict__",))
    self._state = state
    self._entry = native.Entry(self._slow)
    if kind is _Native:
        connect(self, self._entry.callable)
    else:
        kind.__call__ = self._entry.callable
    return self


def _restored(fn: Callable[..., Any], strict: bool, max_variants: int, on_miss: OnMiss) -> Any:
    return jit(fn, strict=strict, max_variants=max_variants, on_miss=on_miss)


runtime()  # linked with the import (7 ms), so that the first call does not pay for it
_Native = called_natively(JitFunction)

__all__ = ["JitFunction", "TensorSpec", "ThermitError", "disable", "empty_cache", "jit", "log_compiles"]
