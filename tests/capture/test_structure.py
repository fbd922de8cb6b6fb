"""Stand-ins into arguments and back; results built again: same types, same sharing, fresh containers."""

from __future__ import annotations

import collections
import dataclasses
import enum
from typing import Any, NamedTuple

import pytest
import torch

from thermit.capture.signature import Arg, Call, flatten_call
from thermit.capture.structure import Substitution, result_template
from thermit.capture.values import NotStatic


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass
class Box:
    value: Any
    k: Any = 0


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any


@dataclasses.dataclass(slots=True)
class Slotted:
    value: Any


class Options(dict):  # type: ignore[type-arg]
    pass


class Color(enum.Enum):
    RED = 1


class Plain:
    pass


def leaf(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


# ---------------------------------------------------------------------------------------------- arguments
def arguments() -> tuple[tuple[Any, ...], dict[str, Any]]:
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    nested = {"list": [a, 1, (b, [c])], "pair": Pair(b, None), "box": Box(c, "k"), "frozen": Frozen(a), "slots": Slotted(b)}
    ordered = collections.OrderedDict(x=a, y=collections.deque([b, 2]))
    return (a, nested, [a, a], (1, 2)), {"ordered": ordered, "options": Options(w=c), "part": slice(a, None)}


def tensors_of(args: Any, kwargs: Any) -> list[int]:
    return [id(t) for t in flatten_call(args, kwargs).tensors]


def test_stand_ins_go_in_and_come_out() -> None:
    args, kwargs = arguments()
    before = tensors_of(args, kwargs)
    stand_ins = {number: torch.zeros(5) for number in before}
    with Substitution(args, kwargs, stand_ins) as inside:
        assert tensors_of(inside.args, inside.kwargs) == [id(stand_ins[number]) for number in before]
        assert tensors_of(args, kwargs) == before, "the caller's own are untouched, for other threads to see"
        assert inside.args[2][0] is inside.args[2][1] is inside.args[0]
        assert type(inside.args[1]["pair"]) is Pair and type(inside.kwargs["options"]) is Options
    assert tensors_of(args, kwargs) == before


def test_what_holds_no_tensor_stays_itself() -> None:
    inner = (1, (2, 3))
    part = slice(0, 1)
    with Substitution((inner, [inner], part), {}, {0: torch.zeros(1)}) as inside:
        assert inside.args[0] is inner and inside.args[1][0] is inner and inside.args[2] is part


def test_changes_made_inside_stay() -> None:
    a, b = torch.ones(1), torch.ones(2)
    items, named = [a, b], {"a": a}
    made = torch.zeros(9)
    with Substitution((items, named), {}, {id(a): torch.zeros(1), id(b): torch.zeros(2)}) as inside:
        inside.args[0].insert(0, made)
        inside.args[0].append(inside.args[0][1])
        inside.args[1]["copy"] = inside.args[1].pop("a")
    assert [id(t) for t in items] == [id(made), id(a), id(b), id(a)]
    assert list(named) == ["copy"] and named["copy"] is a


def test_what_is_stored_is_the_callers_own() -> None:
    a = torch.ones(1)
    items, keep = [a], Plain()
    cell = None

    def read() -> Any:
        return cell

    with Substitution((items,), {}, {id(a): torch.zeros(1)}) as inside:
        keep.items = inside.args[0]  # type: ignore[attr-defined]
        cell = inside.args[0]
        keep.items.append(2)  # type: ignore[attr-defined]
    del inside
    assert keep.items is items and read() is items and items == [a, 2]  # type: ignore[attr-defined]


def test_tensors_come_back_after_an_exception() -> None:
    a = torch.ones(1)
    items = [a]
    with pytest.raises(KeyError), Substitution((items,), {}, {id(a): torch.zeros(1)}):
        raise KeyError
    assert items[0] is a


def test_a_tensor_without_a_stand_in_stays() -> None:
    a = torch.ones(1)
    with Substitution(([a],), {}, {}) as inside:
        assert inside.args[0][0] is a


# ---------------------------------------------------------------------------------------------- results
def same(first: Any, second: Any) -> bool:
    if leaf(first):
        return leaf(second) and torch.equal(first, second)
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if dataclasses.is_dataclass(first):
        return all(same(getattr(first, f.name), getattr(second, f.name)) for f in dataclasses.fields(first))
    return bool(first == second)


X, Y = torch.ones(2), torch.zeros(3)
RESULTS: dict[str, Any] = {
    "tensor": X,
    "none": None,
    "number": 2.5,
    "tuple": (X, Y),
    "list": [X, Y],
    "empty": ((), [], {}),
    "nested": {"a": [X, {"b": (Y, None, 1)}], 2: "s"},
    "named tuple": Pair(X, [Y]),
    "dataclass": Box(X, {"k": Y}),
    "frozen dataclass": Frozen((X, 1)),
    "slots": Slotted([X]),
    "ordered": collections.OrderedDict(b=X, a=Y),
    "default dict": collections.defaultdict(list, a=[X]),
    "sets": ({1, 2}, frozenset((3,))),
    "values": (torch.float32, torch.Size((2, 3)), slice(1, 2), range(3), Color.RED, 1 + 2j, b"x"),
    "of torch": torch.max(torch.ones(2, 2), 0),
    "same tensor twice": [X, {"again": X}],
    "class and function": (Pair, len),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_built_again(name: str) -> None:
    value = RESULTS[name]
    template, leaves = result_template(value, leaf, lambda _: None)
    call = Call((), {})
    first, second = template.build(leaves, call), template.build(leaves, call)
    assert same(value, first) and same(first, second)
    if type(value) in (list, dict, Box):
        assert first is not value and first is not second
    doubled = [t * 2 for t in leaves]
    assert flatten_call((template.build(doubled, call),)).key == flatten_call((value,)).key


def test_kinds_for_the_native_entry() -> None:
    kinds = {name: result_template(value, leaf, lambda _: None)[0].kind for name, value in RESULTS.items()}
    assert {name: kind for name, kind in kinds.items() if kind} == {"none": "none", "tensor": "tensor", "tuple": "tuple", "list": "list"}
    assert result_template((X, X), leaf, lambda _: None)[0].kind == ""


def test_sharing_is_kept() -> None:
    inner = [X]
    template, leaves = result_template({"a": inner, "b": (inner, inner)}, leaf, lambda _: None)
    built = template.build(leaves, Call((), {}))
    assert built["a"] is built["b"][0] is built["b"][1] and built["a"] is not inner


def test_what_existed_is_returned_itself() -> None:
    thing, items = Plain(), [1]
    places = {id(thing): Arg(0, "thing"), id(items): Arg(1, "items")}
    template, leaves = result_template((thing, items, X), leaf, lambda v: places.get(id(v)))
    other = Plain()
    built = template.build(leaves, Call((other, items), {}))
    assert built[0] is other and built[1] is items and built[2] is X


def test_objects_that_the_function_made_are_built_again() -> None:
    class Layer(Plain):
        size = 3

        def __init__(self, keys: Any) -> None:
            self.keys, self.owner = keys, None

    first, second = Layer(X), Layer(Y)
    first.owner = second.owner = box = Box([first.keys])  # type: ignore[assignment]
    template, leaves = result_template({"layers": [first, second], "box": box}, leaf, lambda _: None, lambda v: type(v) is Layer)
    doubled = [t * 2 for t in leaves]
    built = template.build(doubled, Call((), {}))
    layers = built["layers"]
    assert type(layers[0]) is Layer and layers[0] is not first and layers[0].size == 3
    assert layers[0].keys is doubled[0] and layers[1].keys is doubled[1]
    assert layers[0].owner is layers[1].owner is built["box"] and built["box"].value[0] is doubled[0]


class Output(collections.OrderedDict):  # type: ignore[type-arg]
    """As libraries hand out results: entries are attributes, too."""

    built = 0

    def __init__(self, **entries: Any) -> None:
        super().__init__()
        Output.built += 1
        for name, value in entries.items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        super().__setattr__(name, value)


class Counted(Options):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.more = [len(self)]


def test_derived_dicts_that_the_function_made_are_built_again() -> None:
    output, count = Output(x=X, pair=(X, Y)), Output.built
    for value in (output, Counted(x=X, y=[Y])):
        template, leaves = result_template(value, leaf, lambda _: None, lambda _: True)
        doubled = [t * 2 for t in leaves]
        built = template.build(doubled, Call((), {}))
        assert type(built) is type(value) and built is not value and list(built) == list(value)
        assert built["x"] is doubled[0] and list(vars(built)) == list(vars(value))
    assert built.more == [2] and built.more is not value.more  # type: ignore[attr-defined]
    again = result_template(output, leaf, lambda _: None, lambda _: True)[0].build([Y, X], Call((), {}))
    assert again.x is Y and again["pair"][1] is X and again.pair is again["pair"] and Output.built == count
    again.move_to_end("x")
    assert list(again) == ["pair", "x"]


def test_derived_dicts_with_more_state_cannot_be_built() -> None:
    class Slots(dict):  # type: ignore[type-arg]
        __slots__ = ("a",)

    class Factory(collections.defaultdict):  # type: ignore[type-arg]
        pass

    for value in (Slots(), Factory(list)):
        with pytest.raises(NotStatic):
            result_template(value, leaf, lambda _: None, lambda _: True)


def test_objects_that_have_more_than_a_dict_cannot_be_built() -> None:
    class Slots:
        __slots__ = ("a",)

    class Closed(Plain):
        def __del__(self) -> None:
            pass

    class Own(Plain):
        def __new__(cls) -> Any:
            return object.__new__(cls)

    class Number(int):
        pass

    for value in (Slots(), Closed(), Own(), Number(3), ValueError(), torch.nn.Identity()):
        with pytest.raises(NotStatic):
            result_template(value, leaf, lambda _: None, lambda _: True)


def test_a_loop_or_a_new_object_cannot_be_built() -> None:
    for value in (Plain(), [Plain()], lambda: 1, iter([]), Options(a=1), (k for k in ())):
        with pytest.raises(NotStatic):
            result_template(value, leaf, lambda _: None)
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(NotStatic):
        result_template(loop, leaf, lambda _: None)


def test_extra_attributes_of_a_dataclass() -> None:
    box = Box(X)
    box.extra = [Y]  # type: ignore[attr-defined]
    template, leaves = result_template(box, leaf, lambda _: None)
    built = template.build(leaves, Call((), {}))
    assert built.extra[0] is Y and built.extra is not box.extra  # type: ignore[attr-defined]
