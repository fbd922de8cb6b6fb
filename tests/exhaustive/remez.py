"""Best polynomials: the exchange algorithm of Remez in mpmath, with coefficients rounded one after another.

In: a function and a weight on an interval, a degree, a format.  Out: coefficients (lowest first) that minimise the largest
weighted error, each one a value of the format: a coefficient is rounded, then the rest is fitted again to what is left.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable

import mpmath as mp
import numpy as np

Function = Callable[[mp.mpf], mp.mpf]
mp.mp.prec = 260


def to_float32(value: mp.mpf) -> float:
    """The nearest float32 as a Python float (rounded by way of float64, which is close enough for a coefficient)."""
    return float(struct.unpack("<f", struct.pack("<f", float(value)))[0])


ROUND: dict[str, Callable[[mp.mpf], float]] = {"float32": to_float32, "float64": float}


class Grid:
    """Sample points of an interval (dense at the ends), the function and the weight there."""

    def __init__(self, f: Function, weight: Function, low: float, high: float, degree: int) -> None:
        count = 24 * (degree + 2)
        middle, half = (mp.mpf(low) + mp.mpf(high)) / 2, (mp.mpf(high) - mp.mpf(low)) / 2
        self.x = [middle - half * mp.cos(mp.pi * k / count) for k in range(count + 1)]
        tiny = half * mp.mpf(2) ** -60
        self.x = [x if abs(x) > tiny else tiny for x in self.x]
        self.f = [f(x) for x in self.x]
        self.w = [weight(x) for x in self.x]


def _error(grid: Grid, value: list[mp.mpf], coefficients: list[mp.mpf], first: int) -> list[mp.mpf]:
    out = []
    for x, f, w in zip(grid.x, value, grid.w, strict=True):
        total = mp.mpf(0)
        for c in reversed(coefficients):
            total = total * x + c
        out.append((f - total * x**first) * w)
    return out


def _exchange(error: list[mp.mpf], count: int) -> list[int]:
    """Where the error is extreme, signs alternating, `count` places with the largest errors."""
    places: list[int] = []
    for k, e in enumerate(error):
        if places and (error[places[-1]] > 0) == (e > 0):
            if abs(e) > abs(error[places[-1]]):
                places[-1] = k
        else:
            places.append(k)
    while len(places) > count:
        if len(places) == count + 1:
            places.pop(0 if abs(error[places[0]]) < abs(error[places[-1]]) else -1)
        else:
            weakest = min(range(len(places) - 1), key=lambda i: max(abs(error[places[i]]), abs(error[places[i + 1]])))
            del places[weakest : weakest + 2]
    return places


def _remez(grid: Grid, value: list[mp.mpf], first: int, degree: int) -> tuple[list[mp.mpf], mp.mpf]:
    """Coefficients of x^first .. x^degree and the largest weighted error."""
    n = degree - first + 1
    last = len(grid.x) - 1
    places = [round(last * k / n) for k in range(n + 1)]
    coefficients, worst = [mp.mpf(0)] * n, mp.inf
    best = (coefficients, worst)
    for _ in range(12):
        a, b = mp.matrix(n + 1, n + 1), mp.matrix(n + 1, 1)
        for i, k in enumerate(places):
            for j in range(n):
                a[i, j] = grid.x[k] ** (first + j)
            a[i, n] = (-1) ** i / grid.w[k]
            b[i] = value[k]
        solution = mp.lu_solve(a, b)
        coefficients = [solution[j] for j in range(n)]
        error = _error(grid, value, coefficients, first)
        worst = max(abs(e) for e in error)
        if worst < best[1]:
            best = (coefficients, worst)
        level = abs(solution[n])
        if worst <= level * mp.mpf("1.02"):
            break
        exchanged = _exchange(error, n + 1)
        if len(exchanged) < n + 1:
            break
        places = exchanged
    return best


def moved(grid: Grid, rest: list[mp.mpf], rounded: list[float], given: int, form: str) -> list[float]:
    """The coefficients, those after the `given` ones moved by a unit of the last place, one, two or three at a time, while that helps."""
    units = [float(np.spacing(np.dtype(form).type(abs(c)))) for c in rounded]
    columns = [np.array([float(mp.mpf(u) * x**k * w) for x, w in zip(grid.x, grid.w, strict=True)]) for k, u in enumerate(units)]
    error = np.array([float(r * w) for r, w in zip(rest, grid.w, strict=True)])
    steps = {1: (-1, 1), 2: (-2, -1, 1, 2), 3: (-1, 1)}
    moves = [
        list(zip(places, by, strict=True))
        for size, sizes in steps.items()
        for places in itertools.combinations(range(given, len(rounded)), size)
        for by in itertools.product(sizes, repeat=size)
    ]
    by_units = np.zeros(len(rounded))
    improved = True
    while improved:
        improved = False
        for move in moves:
            candidate = error - sum(step * columns[k] for k, step in move)
            if np.abs(candidate).max() < 0.9999 * np.abs(error).max():
                error, improved = candidate, True
                for k, step in move:
                    by_units[k] += step
    return [float(c + n * u) for c, n, u in zip(rounded, by_units, units, strict=True)]


def fit(
    f: Function,
    weight: Function,
    low: float,
    high: float,
    degree: int,
    form: str = "float64",
    exact: int | None = None,
    first: tuple[float, ...] = (),
) -> tuple[list[float], float]:
    """Coefficients (lowest power first) of a polynomial near f, and log2 of the largest of |error * weight|.

    The first `exact` coefficients (all for float32, four for float64) are each rounded before the others are fitted;
    0: all are rounded at once and then moved by units of the last place.  `first`: coefficients that are given.
    """
    grid = Grid(f, weight, low, high, degree)
    rest = [f - sum(mp.mpf(c) * x**k for k, c in enumerate(first)) for f, x in zip(grid.f, grid.x, strict=True)]
    rounded = list(first)
    steps = exact if exact is not None else (degree + 1 if form == "float32" else 4)
    while len(rounded) <= degree:
        coefficients, _ = _remez(grid, rest, len(rounded), degree)
        taken = coefficients[:1] if len(rounded) < steps else coefficients
        for c in taken:
            value = ROUND[form](c)
            power = len(rounded)
            rest = [r - mp.mpf(value) * x**power for r, x in zip(rest, grid.x, strict=True)]
            rounded.append(value)
    if steps == 0:
        rounded = moved(grid, rest, rounded, len(first), form)
        rest = [f - sum(mp.mpf(c) * x**k for k, c in enumerate(rounded)) for f, x in zip(grid.f, grid.x, strict=True)]
    worst = max(abs(r * w) for r, w in zip(rest, grid.w, strict=True))
    return rounded, float(mp.log(worst, 2)) if worst else -999.0
