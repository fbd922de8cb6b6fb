"""What differs between two calls, or what a guard found, as the user would say it.

In:  the keys of two calls (signature.flatten_call), or a guard that failed and the call.  Out: one line: `n: 3 -> 4`.
Idea: the key of a call is made of images (values.freeze); they are walked with the names of the parameters until they part.
"""

from __future__ import annotations

import dataclasses
import inspect
import struct
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from thermit.capture.signature import Call, Guard, argument_names
from thermit.capture.specs import TensorSpec, tensor_facts
from thermit.capture.values import TENSOR, Same

_STATE = ("grad mode", "inference mode", "default dtype", "deterministic algorithms", "float32 matmul precision", "autocast")
_LONGEST = 60  # characters of a value


def difference(function: Callable[..., Any], old: Any, new: Any) -> str:
    """What the new call has that the old one had not."""
    for name, a, b in zip(_STATE, old[0], new[0], strict=True):
        if a != b:
            return f"{name}: {_short(a)} -> {_short(b)}"
    was, now = _arguments(function, old), _arguments(function, new)
    if list(was) != list(now):
        return f"arguments: {', '.join(was) or 'none'} -> {', '.join(now) or 'none'}"
    names = [path for name, image in was.items() for path in _tensors(name, image)]
    for name in was:
        if (what := _parting(name, was[name], now[name])) is not None:
            return what
    for i, (a, b) in enumerate(zip(old[3], new[3], strict=False)):
        if a != b:
            return f"tensor {names[i] if i < len(names) else i}: {f'{a} -> {b}' if str(a) != str(b) else _hidden(a, b)}"
    return "which arguments are one object"


def distance(old: Any, new: Any) -> int:
    """How much two keys differ."""
    parts = zip((old[0], old[1], *old[2]), (new[0], new[1], *new[2]), strict=False)
    return sum(a != b for a, b in parts) + 2 * abs(len(old[2]) - len(new[2])) + sum(a != b for a, b in zip(old[3], new[3], strict=False))


def found(guard: Guard, call: Call) -> str:
    """What a guard that failed found."""
    source, expected = guard.source, guard.expected
    try:
        value = source.read(call)
        match guard.kind:
            case "equals":
                return f"{source}: {_short(expected)} -> {_short(value)}"
            case "is" if expected is None or isinstance(expected, bool):
                return f"{source}: {expected} -> {_short(value)}"
            case "is":
                return f"{source} is another {type(expected).__name__}"
            case "type":
                return f"{source} is a {type(value).__name__}, no {expected.__name__}"
            case "tensor":
                facts = tensor_facts(value) if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
                return f"{source}: {expected} -> {facts if isinstance(facts, str) else TensorSpec(*facts, -1, 0)}"
            case "same":
                return f"{source} and {expected} are not one object any more"
            case "apart":
                first: dict[int, Any] = {}
                for place in expected:
                    other = first.setdefault(id(place.read(call)), place)
                    if other is not place:
                        return f"{other} and {place} are one object"
            case "missing":
                return f"{source} is there now"
    except Exception:  # whatever reading raises
        return f"{source} is not there any more"
    return f"{guard}: not any more"


def _arguments(function: Callable[..., Any], key: Any) -> dict[str, Any]:
    """The image of each argument by its name."""
    count, image = key[1], key[2]
    of = function.forward if isinstance(function, torch.nn.Module) and type(function).__call__ is torch.nn.Module.__call__ else function
    named = dict(zip(argument_names(of, count), image, strict=False))
    return named | dict(zip(*image[count:], strict=True)) if len(image) > count else named


def _parting(name: str, a: Any, b: Any) -> str | None:
    """Where two images part, or None where they are equal."""
    if a == b:
        return None
    if _is_container(a) and _is_container(b) and a[:2] == b[:2] and len(a[2]) == len(b[2]):
        return next(filter(None, map(_parting, _paths(name, a), a[2], b[2])), None)
    was, now = _shown(a), _shown(b)
    return f"{name}: {was} -> {now}" if was != now else f"{name}: another {was.removeprefix('a ')}"


def _is_container(image: Any) -> bool:
    return isinstance(image, tuple) and len(image) == 3 and isinstance(image[0], type) and isinstance(image[2], tuple)


def _paths(name: str, image: Any) -> list[str]:
    """The names of a container's parts."""
    kind, head, parts = image
    if issubclass(kind, dict) and isinstance(head, tuple):
        return [f"{name}[{key if isinstance(key, str | int) else '...'!r}]" for key in head]
    if dataclasses.is_dataclass(kind):
        return [f"{name}.{field.name}" for field in dataclasses.fields(kind)][: len(parts)]
    return [f"{name}[{i}]" for i in range(len(parts))]


def _tensors(name: str, image: Any) -> Iterator[str]:
    """The path of each tensor in an image."""
    if image is TENSOR:
        yield name
    elif _is_container(image):
        for path, part in zip(_paths(name, image), image[2], strict=False):
            yield from _tensors(path, part)
    elif isinstance(image, tuple):
        for part in image:
            yield from _tensors(name, part)


def _shown(image: Any) -> str:
    if image is TENSOR:
        return "a tensor"
    if isinstance(image, Same):
        return f"a {type(image.value).__name__}"
    if _is_container(image):
        return f"a {image[0].__name__} of {len(image[2])}"
    if isinstance(image, tuple) and len(image) == 2:
        kind, value = image
        return _short(struct.unpack("<d", value)[0] if kind is float else value) if isinstance(kind, type) else "another value"
    return "a value" if isinstance(image, tuple) else _short(image)


def _short(value: Any) -> str:
    text = value.__name__ if isinstance(value, type | ModuleType) or inspect.isroutine(value) else repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _hidden(old: TensorSpec, new: TensorSpec) -> str:
    """What differs between two tensors that have one type and lie alike."""
    if (old.group, old.offset) != (new.group, new.offset) or (old.flags ^ new.flags) & 8:
        return "shares memory with other arguments in another way, or is one object with one of them"
    names = [
        name for bit, name in ((1, "requires_grad"), (2, "being a parameter"), (4, "being an inference tensor")) if (old.flags ^ new.flags) & bit
    ]
    return ", ".join(names)
