"""Makes thermit/codegen/coefficients.py: every polynomial of the mathematics, with its range and its error.

    python -m tests.exhaustive.fit            all of them (minutes)
    python -m tests.exhaustive.fit NAME ...   these; the others are kept

A fit is a function, a weight that turns its error into an error of the result, an interval, a degree and a format.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

import mpmath as mp

from tests.exhaustive.remez import Function, fit, to_float32

TARGET = Path(__file__).resolve().parents[2] / "thermit" / "codegen" / "coefficients.py"
HEADER = '''"""The polynomials of the mathematics.  Made by tests/exhaustive/fit.py: change that, not this.

Each comment: what is approximated, on which interval, and log2 of the largest weighted error (relative to the result unless it says otherwise).
"""

'''


@dataclass(frozen=True)
class Fit:
    what: str
    f: Function
    weight: Function
    low: float
    high: float
    degree: int
    form: str = "float64"
    exact: int | None = None
    first: tuple[float, ...] = ()


def even(f: Function) -> Function:
    """f as a function of z = x^2."""
    return lambda z: f(mp.sqrt(z))


LN2_HALF = float(mp.log(2) / 2) * 1.0005
QUARTER = float(mp.pi / 4) * 1.001
QUARTER_SINGLE = float(mp.pi / 4) * 1.008  # float32 rounds to multiples of pi / 2 less exactly
ERF_CUT = 1.09375


def log_rest(f: mp.mpf) -> mp.mpf:
    return (mp.log1p(f) - f) / f**2


def log_weight(f: mp.mpf) -> mp.mpf:
    return f**2 / abs(mp.log1p(f))


def log_of_base(base: int) -> tuple[Function, Function]:
    return lambda f: log_rest(f) / mp.log(base), lambda f: log_weight(f) * mp.log(base)


def erfc_ratio(t: mp.mpf) -> mp.mpf:
    """(1 + 13/8 x) e^(x^2) erfc(x) - 1 where t = (x - 4) / (x + 4): between -0.09 and 0.13, so flat that the rounding of t does no harm."""
    x = 4 * (1 + t) / (1 - t)
    return (1 + 13 * x / 8) * mp.exp(x * x) * mp.erfc(x) - 1


def log_erfc(x: mp.mpf) -> mp.mpf:
    return mp.log(mp.erfc(x)) + x * x


def erf_ratio(t: mp.mpf) -> mp.mpf:
    """erf(x) / x where t = x^2 - 1/2."""
    z = t + mp.mpf(1) / 2
    x = mp.sqrt(z) if z > 0 else mp.mpf(2) ** -40
    return mp.erf(x) / x


def atanh_rest(s: mp.mpf) -> mp.mpf:
    return (2 * mp.atanh(s) - 2 * s) / s**3


def cos_rest(r: mp.mpf) -> mp.mpf:
    return (mp.cos(r) - 1 + r * r / 2) / r**4


def exp_rest(r: mp.mpf) -> mp.mpf:
    return (mp.expm1(r) - r) / r**2


def exp2_rest(r: mp.mpf) -> mp.mpf:
    return (mp.expm1(r * mp.log(2)) - mp.mpf(to_float32(mp.log(2))) * r) / r**2


def tanh_rest(x: mp.mpf) -> mp.mpf:
    return (mp.tanh(x) / x - 1) / x**2


def sinh_rest(x: mp.mpf) -> mp.mpf:
    return (mp.sinh(x) / x - 1) / x**2


def cosh_rest(r: mp.mpf) -> mp.mpf:
    return (mp.cosh(r) - 1) / r**2


def sine_rest(r: mp.mpf) -> mp.mpf:
    return (1 - mp.sin(r) / r) / r**2


def cosine_rest(r: mp.mpf) -> mp.mpf:
    return (mp.cos(r) - 1) / r**2


def scaled_erfc(t: mp.mpf) -> mp.mpf:
    """e^(x^2) erfc(x) where t = (x - 2) / (x + 2)."""
    x = 2 * (1 + t) / (1 - t)
    return mp.exp(x * x) * mp.erfc(x)


FITS: dict[str, Fit] = {
    "EXP_SINGLE": Fit("(e^r - 1 - r) / r^2", exp_rest, lambda r: r**2 * mp.exp(-r), -LN2_HALF, LN2_HALF, 4, "float32"),
    "EXP2_SINGLE": Fit("(2^r - 1 - float32(ln 2) r) / r^2", exp2_rest, lambda r: r**2 * mp.mpf(2) ** -r, -0.5002, 0.5002, 4, "float32"),
    "LOG_SINGLE": Fit("(log(1 + f) - f) / f^2", log_rest, log_weight, -0.29291, 0.41423, 8, "float32", exact=0),
    "LOG2_SINGLE": Fit("(log2(1 + f) - f / ln 2) / f^2", *log_of_base(2), -0.29291, 0.41423, 8, "float32", exact=0),
    "LOG10_SINGLE": Fit("(log10(1 + f) - f / ln 10) / f^2", *log_of_base(10), -0.29291, 0.41423, 8, "float32", exact=0),
    "EXPM1_SINGLE": Fit("(e^r - 1 - r) / r^2", exp_rest, lambda r: r**2 / abs(mp.expm1(r)), -0.502, 0.502, 6, "float32"),
    "TANH_SINGLE": Fit("(tanh(x) / x - 1) / x^2 in x^2", even(tanh_rest), even(lambda x: x**3 / mp.tanh(x)), 0, 0.811, 6, "float32"),
    "SINH_SINGLE": Fit("(sinh(x) / x - 1) / x^2 in x^2", even(sinh_rest), even(lambda x: x**3 / mp.sinh(x)), 0, 1.001, 3, "float32"),
    "COSH_SINGLE": Fit("(cosh(r) - 1) / r^2 in r^2", even(cosh_rest), even(lambda r: r**2), 0, LN2_HALF**2, 2, "float32"),
    "SIN_SINGLE": Fit("(1 - sin(r) / r) / r^2 in r^2", even(sine_rest), even(lambda r: r**3 / mp.sin(r)), 0, QUARTER_SINGLE**2, 2, "float32"),
    "COS_SINGLE": Fit("(cos(r) - 1) / r^2 in r^2", even(cosine_rest), even(lambda r: r**2 / mp.cos(r)), 0, QUARTER_SINGLE**2, 3, "float32"),
    "ERF_SINGLE": Fit(
        "erf(x) / x - 1 in t = x^2 - 1/2",
        lambda t: erf_ratio(t) - 1,
        lambda t: 1 / erf_ratio(t),
        -0.5,
        ERF_CUT**2 - 0.5,
        6,
        "float32",
        exact=0,
    ),
    "ERFC_ROOT_SINGLE": Fit(
        "erfc(x)^(1/3) in x - 35/32",
        lambda v: mp.cbrt(mp.erfc(v + ERF_CUT)),
        lambda v: 3 * mp.erfc(v + ERF_CUT) ** (mp.mpf(2) / 3) / mp.erf(v + ERF_CUT),
        0,
        4 - ERF_CUT,
        9,
        "float32",
        exact=0,
    ),
    "ATAN_SINGLE": Fit(
        "atan(q) / q - 7/8 in q^2",
        even(lambda q: mp.atan(q) / q - mp.mpf(7) / 8),
        even(lambda q: q / mp.atan(q)),
        0,
        1,
        9,
        "float32",
        exact=0,
        first=(0.125,),
    ),
    "EXP_SHORT": Fit("e^r", mp.exp, lambda r: mp.exp(-r), -LN2_HALF, LN2_HALF, 6),
    "EXP2_SHORT": Fit("2^r", lambda r: mp.mpf(2) ** r, lambda r: mp.mpf(2) ** -r, -0.5002, 0.5002, 6),
    "LOG_SHORT": Fit("(log(1 + f) - f) / f^2", log_rest, log_weight, -1 / 3, 1 / 3, 9),
    "LOG2_MEDIUM": Fit("(log2(1 + f) - f / ln 2) / f^2", *log_of_base(2), -1 / 3, 1 / 3, 10),
    "SIN_QUARTER_SHORT": Fit("sin(r) / r in r^2", even(lambda r: mp.sin(r) / r), even(lambda r: r / mp.sin(r)), 0, QUARTER**2, 3),
    "COS_QUARTER_SHORT": Fit("cos(r) in r^2", even(mp.cos), even(lambda r: 1 / mp.cos(r)), 0, QUARTER**2, 4),
    "ATAN_SHORT": Fit("atan(q) / q in q^2", even(lambda q: mp.atan(q) / q), even(lambda q: q / mp.atan(q)), 0, 1, 10),
    "ASIN_SHORT": Fit("asin(s) / s in s^2", even(lambda s: mp.asin(s) / s), even(lambda s: s / mp.asin(s)), 0, 0.2501, 7),
    "ERFCX_SHORT": Fit("e^(x^2) erfc(x) in (x - 2) / (x + 2)", scaled_erfc, lambda t: 1 / scaled_erfc(t), -1, 0.68, 12),
    "EXP": Fit("(e^r - 1 - r) / r^2", exp_rest, lambda r: r**2 * mp.exp(-r), -LN2_HALF, LN2_HALF, 10),
    "LOG": Fit("(log((1 + s) / (1 - s)) - 2 s) / (s z) in z = s^2", even(atanh_rest), even(lambda s: s * s / (2 * mp.atanh(s) / s)), 0, 0.0401, 7),
    "LOG_TAIL": Fit(
        "((log((1 + s) / (1 - s)) - 2 s) / (s z) - 2/3) / z in z = s^2",
        lambda z: (even(atanh_rest)(z) - mp.mpf(2) / 3) / z,
        lambda z: z * z / 2,
        0,
        0.02945,
        7,
    ),
    "SIN": Fit("(sin(r) - r) / r^3 in r^2", even(lambda r: (mp.sin(r) - r) / r**3), even(lambda r: r**3 / mp.sin(r)), 0, QUARTER**2, 5),
    "COS": Fit("(cos(r) - 1 + r^2 / 2) / r^4 in r^2", even(cos_rest), even(lambda r: r**4 / mp.cos(r)), 0, QUARTER**2, 5),
    "ATAN": Fit("(atan(t) - t) / t^3 in t^2", even(lambda t: (mp.atan(t) - t) / t**3), even(lambda t: t**3 / mp.atan(t)), 0, 0.1717, 12),
    "ASIN": Fit("(asin(s) - s) / s^3 in s^2", even(lambda s: (mp.asin(s) - s) / s**3), even(lambda s: s**3 / mp.asin(s)), 0, 0.25001, 12),
    "ERF": Fit("erf(x) / x - 1 in x^2", even(lambda x: mp.erf(x) / x - 1), even(lambda x: x / mp.erf(x)), 0, 0.5626, 10),
    "LOG_ERFC": Fit("ln(e^(x^2) erfc(x)), weighted by erfc / erf", log_erfc, lambda x: mp.erfc(x) / mp.erf(x), 0.75, 5.95, 18),
    "ERFC": Fit("(1 + 13/8 x) e^(x^2) erfc(x) - 1 in (x - 4) / (x + 4)", erfc_ratio, lambda t: mp.mpf(1), -0.7778, 0.7461, 22, exact=8),
}


def kept() -> dict[str, tuple[str, str]]:
    """The comment and the definition of each polynomial in the file as it is."""
    found: dict[str, tuple[str, str]] = {}
    if not TARGET.exists():
        return found
    lines = TARGET.read_text().splitlines()
    for node in ast.parse(TARGET.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = (lines[node.lineno - 2], "\n".join(lines[node.lineno - 1 : node.end_lineno]))
    return found


def made(name: str, f: Fit) -> tuple[str, str]:
    coefficients, error = fit(f.f, f.weight, f.low, f.high, f.degree, f.form, f.exact, f.first)
    rows = "".join(f"    {c!r},\n" for c in coefficients)
    return f"# {f.what} on [{f.low:.6g}, {f.high:.6g}]: 2^{error:.1f}", f"{name} = (\n{rows})"


def main(names: list[str]) -> None:
    old = kept()
    out = [HEADER.rstrip() + "\n"]
    for name, f in FITS.items():
        text = made(name, f) if not names or name in names or name not in old else old[name]
        print(name, text[0], flush=True)
        out.append("\n".join(text) + "\n")
    TARGET.write_text("\n".join(out))


if __name__ == "__main__":
    main(sys.argv[1:])
