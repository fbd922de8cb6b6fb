"""What is known of a processor: its name for LLVM, its vector width, which instructions it has.

`host_target()` is found once per process.  A Target is a plain value: it is part of the compile key, tests make their own, and
loops/ sees it only as an argument.  Nothing else in the compiler asks which machine it runs on.
"""

from __future__ import annotations

import functools

import llvmlite.binding as llvm

from thermit.records import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A processor.  `features` is LLVM's list ("+avx2,-avx512f"); cache sizes are what is usual for such a processor, per core."""

    triple: str
    cpu: str
    features: str
    vector_bits: int
    has_fma: bool
    has_f16c: bool
    has_bf16: bool
    has_masked32: bool  # masked vector loads and stores of 32- and 64-bit elements
    has_masked8: bool  # also of 8- and 16-bit elements
    has_fast_gather: bool
    has_round: bool  # floor, ceil, trunc, roundeven in one instruction
    l1_bytes: int = 32 * 1024
    l2_bytes: int = 512 * 1024

    def lanes(self, bits: int) -> int:
        """Elements of so many bits in one register."""
        return max(1, self.vector_bits // bits)

    @property
    def vector_registers(self) -> int:
        """How many vector registers there are."""
        return 32 if self.vector_bits == 512 or self.triple.startswith(("aarch64", "arm64")) else 16

    @property
    def is_x86(self) -> bool:
        return self.triple.startswith(("x86_64", "i386", "i686"))

    @property
    def adds_apart(self) -> bool:
        """Whether additions have execution units of their own, beside those of products and multiply-adds (AMD Zen)."""
        return self.has_fma and self.cpu.startswith("znver")

    @property
    def widens_flags(self) -> bool:
        """Whether a mask has as many bits as what it selects, and bytes are widened as they are read (SSE4, AVX2)."""
        return self.is_x86 and self.has_round and self.vector_bits <= 256

    @property
    def folds_memory(self) -> bool:
        """Whether instructions read an operand from memory and registers are few (16): constants then rather stand in memory."""
        return self.is_x86 and self.vector_bits <= 256


def make_target(triple: str, cpu: str, features: dict[str, bool]) -> Target:
    """The Target of a processor with these features; `features` as LLVM names them."""
    has = {name for name, present in features.items() if present}
    text = ",".join(("+" if present else "-") + name for name, present in sorted(features.items()))
    arm = triple.startswith(("aarch64", "arm64"))
    wide = {"avx512f", "avx512vl", "avx512bw", "avx512dq"} <= has
    if wide:
        # several models prefer 256-bit registers in LLVM's tables; the code here is written for 512
        text += ",-prefer-256-bit"
    return Target(
        triple=triple,
        cpu=cpu,
        features=text,
        vector_bits=512 if wide else 256 if "avx2" in has else 128,
        has_fma=arm or "fma" in has,
        has_f16c=arm or "f16c" in has,
        has_bf16="avx512bf16" in has or "bf16" in has,
        has_masked32=wide or "avx2" in has,
        has_masked8=wide,
        has_fast_gather=wide,
        has_round=arm or "sse4.1" in has,
    )


@functools.cache
def host_target() -> Target:
    """The processor that this process runs on."""
    try:
        features = dict(llvm.get_host_cpu_features())
    except RuntimeError:  # LLVM does not know this platform's way to ask
        features = {}
    return make_target(llvm.get_process_triple(), llvm.get_host_cpu_name(), features)


def x86_target(level: str) -> Target:
    """An x86-64 processor without (or with more of) what the host has, for tests: "sse2", "sse4", "avx2" or "avx512"."""
    names = ["sse2"]
    if level != "sse2":
        names += ["sse3", "ssse3", "sse4.1", "sse4.2", "popcnt"]
    if level in ("avx2", "avx512"):
        names += ["avx", "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt"]
    if level == "avx512":
        names += ["avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512cd"]
    return make_target("x86_64-unknown-linux-gnu", "x86-64", dict.fromkeys(names, True))
