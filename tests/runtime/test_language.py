"""The small language: what it computes, what it refuses."""

import ctypes

import pytest

from thermit.runtime import library
from thermit.runtime.native.language import Source, to_llvm

ADD_ONE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda x: x + 1)
VALUES = {"ADDRESS": 12345, "outside": ctypes.cast(ADD_ONE, ctypes.c_void_p).value}


def source(body, params="a, b"):
    text = f"def f({params}):\n" + "\n".join("    " + line for line in body.strip("\n").split("\n")) + "\n"
    return Source(text, {"K": 7, "BIG": 1 << 40}, ("ADDRESS",), {"outside": "i64"})


def run(source, *args):
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(args))(library.load(source, VALUES)["f"])(*args)


BRANCHES = "if a > b and not a == 7:\n    return 1\nelif a == 7 or b < 0:\n    return 2\nreturn 3"
SUM = "s = 0\nfor i in range(0, a):\n    if i == 3:\n        continue\n    if i == b:\n        break\n    s += i\nreturn s"
NESTED = "s = 0\nfor i in range(0, a):\n    for j in range(i, b):\n        s += i * j\nreturn s"
REFUSED = ["return c", "K = 1", "return a % b", "import os", "return nothing(a)", "return 1\nreturn 2", "if a:\n    x = 1\nreturn x", "a.b = 1"]
CASES = [
    ("return a + b * 2 - K", (5, 6), 10),
    ("return (a // b) + (a >> 1) + (a << 2) + (a & b) + (a | b) + (a ^ b)", (20, 6), 3 + 10 + 80 + 4 + 22 + 18),
    ("return -a", (5, 0), -5),
    (BRANCHES, (7, 0), 2),
    (BRANCHES, (6, 0), 1),
    (BRANCHES, (0, 0), 3),
    ("return (a < b) + (a == 1 and b == 2) * 10 + (not a) * 100", (1, 2), 11),
    (SUM, (10, 6), 0 + 1 + 2 + 4 + 5),
    ("s = 0\nwhile a > 0:\n    s += a\n    a -= 1\n    t = s\n    if t > 20:\n        s = t - 1\nreturn s", (5, 0), 15),
    (NESTED, (3, 4), sum(i * j for i in range(3) for j in range(i, 4))),
    ("m = stack(64)\ni64[m] = a\ni32[m + 8] = b\nu8[m + 12] = b\nreturn i64[m] + i32[m + 8] + u8[m + 12]", (1, -2), 1 - 2 + 254),
    ("m = stack(8)\ni64[m] = 5\no = add(m, a)\np = swap(m, b)\nreturn o * 100 + p * 10 + i64[m]", (1, 2), 562),
    ("return leading_zeros(a)", (1, 0), 63),
    ("return outside(a) + invoke_i64(outside, b)", (1, 10), 13),
    ("return ADDRESS + BIG", (0, 0), 12345 + (1 << 40)),
    ("if a:\n    x = 1\nelse:\n    x = 2\n    if b:\n        x = 3\nreturn x", (0, 1), 3),
    ("while 1:\n    a += 1\n    if a > 10:\n        return a", (0, 0), 11),
    ("'''a docstring'''\na + b", (0, 0), 0),
]


@pytest.mark.parametrize("body, args, expected", CASES)
def test_meaning(body, args, expected):
    assert run(source(body), *args) == expected


@pytest.mark.parametrize("body", REFUSED)
def test_refusals_name_function_and_line(body):
    with pytest.raises(SyntaxError, match=r"f, line [0-9]+"):
        to_llvm(source(body))


def test_functions_call_each_other_and_hand_over_their_address():
    text = "def g(x):\n    return x * 2\n\ndef f(x):\n    return g(x) + invoke_i64(g, 1)\n"
    made = Source(text, {}, (), {})
    assert run(made, 20) == 42 and set(library.load(made, {})) == {"f", "g", "words"}
