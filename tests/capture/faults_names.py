"""Changes to names: globals, closures, defaults, functions, context variables.  Each gives a function, its arguments and the change."""

from __future__ import annotations

import contextvars
import functools
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from watched import HANDLES, Build, Fault, Undo, vector

THIS = sys.modules[__name__]
SCALE: Any = 2.0
FLAG = False
TABLE: Any = {"k": 1.0, "deep": {"list": [1, 2, (3, 4.0)]}}
WEIGHTS: Any = [torch.ones(3), torch.zeros(3)]
SETTING: contextvars.ContextVar[float] = contextvars.ContextVar("SETTING", default=1.0)
FAULTS: dict[str, Build] = {}


def fault(build: Build) -> Build:
    FAULTS[build.__name__] = build
    return build


def set_global(name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(THIS, name, value)


@fault
def global_number() -> Fault:
    return lambda x: x * SCALE, (vector(),), set_global("SCALE", 3.0)


@fault
def global_number_of_another_type() -> Fault:
    return lambda x: x * SCALE, (vector(),), set_global("SCALE", 2)


@fault
def global_flag() -> Fault:
    return lambda x: x + 1 if FLAG else x, (vector(),), set_global("FLAG", True)


@fault
def global_minus_zero() -> Fault:
    THIS.SCALE = 0.0  # type: ignore[attr-defined]
    return lambda x: x / SCALE, (vector(),), set_global("SCALE", -0.0)


@fault
def global_deleted() -> Fault:
    return lambda x: x * SCALE, (vector(),), lambda: delattr(THIS, "SCALE")


@fault
def builtin_shadowed() -> Fault:
    return lambda x: x * len([1, 2]), (vector(),), set_global("len", lambda x: 7)


@fault
def global_dict_value() -> Fault:
    return lambda x: x * TABLE["k"], (vector(),), lambda: TABLE.update(k=2.0)


@fault
def global_dict_key_added() -> Fault:
    return lambda x: x * len(TABLE), (vector(),), lambda: TABLE.update(new=2.0)


@fault
def global_dict_key_removed() -> Fault:
    return lambda x: x * TABLE.get("k", 5.0), (vector(),), lambda: TABLE.pop("k")


@fault
def global_dict_order() -> Fault:
    def change() -> None:
        TABLE["k"] = TABLE.pop("k")

    return lambda x: [x * i for i, k in enumerate(TABLE) if k == "k"], (vector(),), change


@fault
def nested_list_appended() -> Fault:
    return lambda x: x * sum(TABLE["deep"]["list"][:2]) + len(TABLE["deep"]["list"]), (vector(),), lambda: TABLE["deep"]["list"].append(9)


@fault
def global_tensor_of_another_shape() -> Fault:
    return lambda x: x * WEIGHTS[0].shape[0], (vector(),), lambda: WEIGHTS.__setitem__(0, torch.ones(4))


@fault
def global_tensor_list_appended() -> Fault:
    def f(x: Any) -> Any:
        for w in WEIGHTS:
            x = x + w
        return x

    return f, (vector(),), lambda: WEIGHTS.append(torch.ones(3))


@fault
def global_tensor_requires_grad() -> Fault:
    return lambda x: x * WEIGHTS[0], (vector(),), lambda: WEIGHTS[0].requires_grad_()


@fault
def global_tensor_dtype() -> Fault:
    return lambda x: x * WEIGHTS[1], (vector(),), lambda: WEIGHTS.__setitem__(1, torch.ones(3, dtype=torch.float64))


@fault
def cell_rebound() -> Fault:
    w = 2.0

    def set_w() -> None:
        nonlocal w
        w = 3.0

    return lambda x: x * w, (vector(),), set_w


@fault
def cell_of_a_helper() -> Fault:
    w = 2.0

    def set_w() -> None:
        nonlocal w
        w = 3.0

    def helper(x: Any) -> Any:
        return x * w

    return lambda x: helper(x) + 1, (vector(),), set_w


@fault
def loop_variable() -> Fault:
    made = []
    for i in range(2):
        made.append(lambda x: x * i)  # noqa: B023
        if i == 0:
            first = made[0]

    def set_i() -> None:
        first.__closure__[0].cell_contents = 7  # type: ignore[index]

    return first, (vector(),), set_i


@fault
def cell_read_in_an_inner_function() -> Fault:
    w = [1.0]

    def f(x: Any) -> Any:
        def inner(y: Any) -> Any:
            return [y * k for k in w]

        return inner(x)

    return f, (vector(),), lambda: w.append(2.0)


@fault
def tensor_in_a_cell() -> Fault:
    w = torch.ones(3)

    def set_w() -> None:
        nonlocal w
        w = torch.ones(3, dtype=torch.int64)

    return lambda x: x * w, (vector(),), set_w


@fault
def context_variable() -> Fault:
    return lambda x: x * SETTING.get(), (vector(),), lambda: SETTING.set(SETTING.get() + 1)


@fault
def module_attribute() -> Fault:
    module = types.ModuleType("settings_of_the_user")
    module.scale = 2.0  # type: ignore[attr-defined]
    return lambda x: x * module.scale, (vector(),), lambda: setattr(module, "scale", 3.0)  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------- functions
def _helper(x: Any, k: Any = 2) -> Any:
    return x * k


def _calls_helper(x: Any) -> Any:
    return _helper(x)


@fault
def helper_replaced() -> Fault:
    return _calls_helper, (vector(),), set_global("_helper", lambda x: x - 1)


@fault
def helper_code_replaced() -> Fault:
    def helper(x: Any) -> Any:
        return x + 1

    def other(x: Any) -> Any:
        return x - 1

    return lambda x: helper(x), (vector(),), lambda: setattr(helper, "__code__", other.__code__)


@fault
def helper_default_replaced() -> Fault:
    def helper(x: Any, k: Any = 2) -> Any:
        return x * k

    return lambda x: helper(x), (vector(),), lambda: setattr(helper, "__defaults__", (3,))


@fault
def own_default_mutated() -> Fault:
    default = [1.0]

    def f(x: Any, ks: Any = default) -> Any:
        return x * ks[0]

    return f, (vector(),), lambda: default.__setitem__(0, 2.0)


@fault
def keyword_default_mutated() -> Fault:
    default = {"k": 1.0}

    def f(x: Any, *, ks: Any = default) -> Any:
        return x * ks["k"]

    return f, (vector(),), lambda: default.update(k=2.0)


@fault
def function_attribute() -> Fault:
    def helper(x: Any) -> Any:
        return x * helper.k  # type: ignore[attr-defined]

    helper.k = 1.0  # type: ignore[attr-defined]
    return lambda x: helper(x), (vector(),), lambda: setattr(helper, "k", 2.0)


@fault
def decorated_function() -> Fault:
    setting = {"k": 1.0}

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) * setting["k"]

        return wrapper

    @decorate
    def f(x: Any) -> Any:
        return x + 1

    return f, (vector(),), lambda: setting.update(k=2.0)


@fault
def under_a_decorator() -> Fault:
    setting = {"k": 1.0}

    def decorate(function: Any) -> Any:
        return functools.wraps(function)(lambda *args: function(*args))

    @decorate
    def f(x: Any) -> Any:
        return x * setting["k"]

    return f, (vector(),), lambda: setting.update(k=2.0)


@fault
def partial_argument() -> Fault:
    options = {"k": [1.0]}
    part = functools.partial(lambda x, k: x * k[0], **options)
    return lambda x: part(x), (vector(),), lambda: options["k"].__setitem__(0, 2.0)


@fault
def partial_itself() -> Fault:
    values = [1.0]
    return functools.partial(lambda k, x: x * k[0], values), (vector(),), lambda: values.__setitem__(0, 2.0)


@fault
def function_in_a_table() -> Fault:
    table = {"f": lambda x: x + 1}
    return lambda x: table["f"](x), (vector(),), lambda: table.update(f=lambda x: x - 1)


@fault
def cell_behind_a_table() -> Fault:
    k = 1.0

    def set_k() -> None:
        nonlocal k
        k = 2.0

    table = {"f": [lambda x: x * k]}
    return lambda x: table["f"][0](x), (vector(),), set_k


@fault
def recursion() -> Fault:
    depth = {"n": 2}

    def f(x: Any, n: int = 0) -> Any:
        return x if n >= depth["n"] else f(x * 2, n + 1)

    return f, (vector(),), lambda: depth.update(n=3)


@fault
def generator_function() -> Fault:
    steps = [1, 2]

    def produce(x: Any) -> Any:
        for s in steps:
            yield x * s

    return lambda x: sum(produce(x)), (vector(),), lambda: steps.append(3)


@fault
def variable_of_the_environment() -> Fault:
    os.environ["THERMIT_TEST"] = "1"
    return lambda x: x * int(os.environ.get("THERMIT_TEST", "0")), (vector(),), lambda: os.environ.update(THERMIT_TEST="2")


@fault
def variable_of_the_environment_is_set() -> Fault:
    os.environ.pop("THERMIT_TEST", None)
    return lambda x: x * int(os.getenv("THERMIT_TEST", "3")), (vector(),), lambda: os.environ.update(THERMIT_TEST="2")


@fault
def variable_of_the_environment_is_there() -> Fault:
    os.environ.pop("THERMIT_TEST", None)
    return lambda x: x * ("THERMIT_TEST" in os.environ), (vector(),), lambda: os.environ.update(THERMIT_TEST="2")


@fault
def list_of_a_library() -> Fault:
    return lambda x: x * len(sys.argv), (vector(),), lambda: HANDLES.append(Undo(sys.argv.pop, sys.argv.append("more")))


@fault
def setting_of_pytorch() -> Fault:
    def change() -> None:
        torch._C._set_mkldnn_enabled(False)
        HANDLES.append(Undo(lambda: torch._C._set_mkldnn_enabled(True)))

    return lambda x: x * (2 if torch.backends.mkldnn.enabled else 3), (vector(),), change


@fault
def union_of_types() -> Fault:
    THIS.SCALE = int | str  # type: ignore[attr-defined]
    return lambda x: x + 1 if isinstance(2.0, SCALE) else x, (vector(),), set_global("SCALE", int | float)


@fault
def class_in_a_union() -> Fault:
    class Kind(type):
        yes = True

        def __instancecheck__(cls, value: Any) -> bool:
            return cls.yes

    class One(metaclass=Kind):
        pass

    THIS.SCALE = int | One  # type: ignore[attr-defined]
    return lambda x: x + 1 if isinstance(2.0, SCALE) else x, (vector(),), lambda: setattr(Kind, "yes", False)


@fault
def parts_of_a_generic_type() -> Fault:
    THIS.SCALE = list[int]  # type: ignore[attr-defined]
    return lambda x: x + 1 if SCALE.__args__[0] is int else x, (vector(),), set_global("SCALE", list[float])


@fault
def mark_of_its_own() -> Fault:
    mark = object()
    THIS.SCALE = mark  # type: ignore[attr-defined]
    return lambda x: x + 1 if SCALE is mark else x, (vector(),), set_global("SCALE", object())


@fault
def variable_of_a_context_that_is_a_tensor() -> Fault:
    weight: contextvars.ContextVar[Any] = contextvars.ContextVar("weight", default=None)
    weight.set(torch.ones(3))
    return lambda x: x + weight.get(), (vector(),), lambda: weight.set(torch.ones(3, dtype=torch.float64))
