"""Records are dataclasses: each class here is made by both decorators, and both must behave alike."""

import copy
import dataclasses
import pickle
import pprint
from dataclasses import field

import pytest

from thermit import records


def plain(dataclass):
    @dataclass
    class Plain:
        """Defaults, a factory, something done at the end."""

        x: int
        y: list[int] = field(default_factory=list)
        z: str = "z"

        def __post_init__(self) -> None:
            self.y.append(self.x)

        def twice(self) -> int:
            return 2 * self.x

    return Plain


def frozen(dataclass):
    @dataclass(frozen=True, slots=True)
    class Frozen:
        x: float
        y: tuple[int, ...] = ()

        @property
        def both(self):
            return self.x, self.y

    return Frozen


def derived(dataclass):
    class Root:
        __slots__ = ()

        def name(self):
            return type(self).__name__

    @dataclass(frozen=True, slots=True)
    class Base(Root):
        x: int
        y: int = 2

    @dataclass(frozen=True, slots=True)
    class Derived(Base):
        z: int = 3

        def __repr__(self):
            return f"mine {self.x}"

        def __hash__(self):
            return 7

    return Derived


def identity(dataclass):
    @dataclass(frozen=True, slots=True, eq=False)
    class Identity:
        x: int
        y: int = field(default=5)

    return Identity


def open_slots(dataclass):
    @dataclass(slots=True)
    class Open:
        x: int = 0

    return Open


def empty(dataclass):
    @dataclass(frozen=True)
    class Empty:
        pass

    return Empty


CASES = [
    (plain, [(1,), (1, [2]), (2, [], "q")]), (frozen, [(1.0,), (float("nan"), (1,)), (1.0, ())]), (derived, [(1,), (1, 2, 3), (2, 2, 4)]),
    (identity, [(1,), (1, 5)]), (open_slots, [(), (1,)]), (empty, [()]),
]  # fmt: skip


def outcome(function):
    try:
        return function()
    except Exception as error:
        return type(error)


def facts(kind, arguments):
    objects = [kind(*copy.deepcopy(a)) for a in arguments]
    names = [f.name for f in dataclasses.fields(kind)]
    yield names, kind.__match_args__, dataclasses.is_dataclass(kind), hasattr(objects[0], "__dict__"), kind.__name__
    yield [[a == b for b in objects] for a in objects], objects[0] == 1
    yield [repr(o) for o in objects], [outcome(lambda o=o: hash(o) == hash(copy.copy(o))) for o in objects]
    for o in objects:
        yield [getattr(o, name) for name in names if getattr(o, name) == getattr(o, name)]
        for name in names:
            yield outcome(lambda o=o, name=name: setattr(copy.copy(o), name, 3)), outcome(lambda o=o, name=name: delattr(copy.copy(o), name))
        if names:
            yield repr(dataclasses.replace(o, **{names[0]: 9}))
    for bad in ((), (1, 2, 3, 4, 5)):
        yield outcome(lambda bad=bad: type(kind(*bad))) is TypeError
    yield [hasattr(kind, name) for name in names], outcome(lambda: kind(nothing=1)), outcome(lambda: repr(kind(**{name: [] for name in names}))[:3])


@pytest.mark.parametrize("define, arguments", CASES)
def test_as_the_standard_decorator(define, arguments):
    assert list(facts(define(records.dataclass), arguments)) == list(facts(define(dataclasses.dataclass), arguments))


@records.dataclass(frozen=True, slots=True)
class Kept:
    x: int
    y: str = "y"


def test_frozen_slots_can_be_pickled():
    assert pickle.loads(pickle.dumps(Kept(3))) == Kept(3) == copy.deepcopy(Kept(3))


def test_a_match_takes_fields_in_order():
    match Kept(3):
        case Kept(x, y):
            assert (x, y) == (3, "y")


def test_the_standard_library_takes_them_for_its_own():
    """pprint and the standard decorator read how a dataclass was made."""
    assert pprint.pformat(Kept(3)) == repr(Kept(3))
    derived = dataclasses.make_dataclass("Longer", [("z", int, 1)], bases=(Kept,), frozen=True)
    assert derived(1).z == 1 and derived(1) == derived(1, "y", 1)
    with pytest.raises(TypeError):
        dataclasses.make_dataclass("Thawed", [("z", int, 1)], bases=(Kept,))
