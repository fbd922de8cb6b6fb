"""Runs compiled programs with every buffer between two pages that may not be touched: an access out of bounds is a crash.

python tests/runtime/guarded.py SEED COUNT     COUNT random programs, and the functions below at odd sizes; prints each name before it runs

Buffers lie at the very end of their pages in one run and at the very beginning in the other; in the second, kernels also run in pieces, split
at every multiple of the grain.  Results must be those of the ordinary run, bit for bit.
"""

import ctypes
import faulthandler
import itertools
import math
import mmap
import sys
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[2]))
import thermit
from tests.fuzz.programs import program
from thermit.capture.signature import Call
from thermit.runtime.results import flat
from thermit.schedule.plan import RunCall, RunCopy, RunKernel

PAGE = mmap.PAGESIZE
KERNEL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mprotect.argtypes, libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], [ctypes.c_void_p, ctypes.c_size_t]


class Guarded:
    """`nbytes` of memory between two forbidden pages."""

    def __init__(self, nbytes, at_end):
        self.pages = max(1, -(-nbytes // PAGE))
        self.base = libc.mmap(None, (self.pages + 2) * PAGE, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        for page in (self.base, self.base + (self.pages + 1) * PAGE):
            assert libc.mprotect(page, PAGE, 0) == 0
        self.address = self.base + PAGE + (self.pages * PAGE - nbytes if at_end else 0)
        ctypes.memset(self.base + PAGE, 0xA5, self.pages * PAGE)

    def tensor(self, buffer):
        dtype = getattr(torch, buffer.dtype.name)
        if buffer.nbytes == 0:
            return torch.empty_strided(buffer.sizes, buffer.strides, dtype=dtype)
        memory = (ctypes.c_uint8 * buffer.nbytes).from_address(self.address)
        return torch.frombuffer(memory, dtype=dtype).as_strided(buffer.sizes, buffer.strides)

    def free(self):
        libc.munmap(self.base, (self.pages + 2) * PAGE)


def run_guarded(compilation, inputs, at_end, split):
    plan = compilation.plan
    addresses = {name: code.module.address(code.symbol) for name, code in compilation.codes.items()}
    memory = [Guarded(b.nbytes, at_end) for b in plan.buffers]
    tensors = [m.tensor(b) for m, b in zip(memory, plan.buffers, strict=True)]
    for b, m in zip(plan.buffers, memory, strict=True):
        if b.role == "input":
            ctypes.memmove(m.address, inputs[b.index].data_ptr(), b.nbytes)
    for step in plan.steps:
        if isinstance(step, RunKernel):
            kernel, pointers = KERNEL(addresses[step.kernel]), (ctypes.c_void_p * len(step.buffers))(*(memory[b].address for b in step.buffers))
            edges = [*range(0, step.extent, step.grain * max(1, step.extent // step.grain // 7)), step.extent] if split else [0, step.extent]
            for begin, end in itertools.pairwise(edges):
                assert kernel(pointers, begin, end) == 0
        elif isinstance(step, RunCopy):
            tensors[step.target].copy_(tensors[step.source])
        elif isinstance(step, RunCall):

            def fill(v, step=step):
                if isinstance(v, (list, tuple)):
                    return [fill(w) for w in v]
                return tensors[step.buffers[v.index]] if type(v).__name__ == "Slot" else v

            returned = step.op(*map(fill, step.args), **{k: fill(v) for k, v in step.kwargs})
            for b, r in zip(step.results, flat(returned if isinstance(returned, (tuple, list)) else (returned,)), strict=False):
                if b >= 0:
                    tensors[b].copy_(r)
    outputs = [tensors[b].clone() for b in plan.outputs]
    updates = [tensors[i].clone() for i in plan.updates]
    for m in memory:
        m.free()
    return outputs + updates


def same(a, b):
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}[a.element_size()]
    return torch.equal(a.contiguous().reshape(-1).view(integer), b.contiguous().reshape(-1).view(integer))


def close(a, b):
    return same(a, b) or torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


def check(name, function, arguments):
    print(name, flush=True)
    compiled = thermit.jit(function)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled(*arguments())
    except Exception as fault:
        try:
            function(*arguments())
        except type(fault):
            return 0  # eager raises too
        raise
    count = 0
    for variants in compiled._state.variants.values():
        for variant in variants:
            if variant.compilation is None or any(isinstance(s, RunKernel) and s.can_stop for s in variant.compilation.plan.steps):
                continue
            inputs = variant.inputs(Call(arguments(), {}))
            plan = variant.compilation.plan
            for at_end, split in ((True, False), (False, True)):
                torch.manual_seed(0)
                made = run_guarded(variant.compilation, inputs, at_end, split)
                torch.manual_seed(0)
                expected = variant.compilation.program.outputs(inputs) + [inputs[i].clone() for i in plan.updates]
                # a library's product depends on where its operands lie
                equal = close if any(isinstance(s, RunCall) for s in plan.steps) else same
                assert all(equal(a, b) for a, b in zip(made, expected, strict=True)), f"{name}: at_end={at_end} split={split}"
                count += 1
    return count


def channels(x, count):
    return torch.stack([x * (k + 1) for k in range(count)])[None]


def filters(*shape):
    return torch.arange(math.prod(shape)).reshape(shape) % 7 * 0.1


def rows_of(x, count, size):
    return x.reshape(-1).repeat(-(-count * size // x.numel()))[: count * size].reshape(count, size)


def heads_of(x, count):
    """Six heads of 60 whose rows lie 1440 bytes from each other."""
    return rows_of(x, count, 360).reshape(1, count, 6, 60).transpose(1, 2)


def hidden(scores):
    rows, keys = (torch.arange(n) for n in scores.shape[-2:])
    return scores.masked_fill(keys > rows[:, None] + 2, -math.inf)


FUNCTIONS = {
    "chain": lambda x: F.gelu(x * 2 + x.sin()) * torch.sigmoid(x).sqrt(),
    "softmax": lambda x: x.softmax(-1),
    "softmax over columns": lambda x: x.softmax(0),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "sums": lambda x: (x.sum(), x.sum(0), x.sum(1), x.mean(), x.var(1), x.amax(0), x.argmax(1)),
    "transposed": lambda x: x.t().contiguous() + 1,
    "transposed sum": lambda x: x + x.flip(0).t().reshape(x.shape),
    "cat and slice": lambda x: torch.cat([x[1:], x[:, ::2].repeat(1, 3)[:, : x.shape[1]]]),
    "pad": lambda x: F.pad(x, (1, 2, 3, 1)) * 2,
    "scan": lambda x: (x.cumsum(1), x.cumsum(0)),
    "half": lambda x: (x.bfloat16() * 2).softmax(-1),
    "casts": lambda x: (x.int(), x.double().exp(), (x > 0), (x * 10).to(torch.uint8)),
    "update": lambda x: x.mul_(2).add_(1),
    "update moved": lambda x: x.copy_(x.flip(1)),
    "gather": lambda x: x[:, torch.arange(x.shape[1] - 1, -1, -1)],
    "outer": lambda x: (x[:, :, None] - x[:, None, :]).square().sum(-1),
    "lanes apart": lambda x: (x[:, ::2] * 2, x[:, 1::2] - 1, x[:, ::3] + 1, x[:, 2::3] + x[:, 2::3], x[:, 3::4] * 3, x.double()[:, 1::4]),
    "pairs": lambda x: (x[:, : x.shape[1] // 2 * 2 : 2] * 3 - x[:, 1::2], x.reshape(-1)[: x.numel() // 4 * 4].reshape(-1, 4)[:, 1] + 2),
    "side by side": lambda x: (torch.stack((x, x * 2), -1), torch.stack((x, x + 1, x * 3), -1), torch.stack((x > 0, x > 1, x < 0, x < 1), -1)),
    "image": lambda x: F.interpolate(x[None, None], scale_factor=1.7, mode="bilinear"),
    "products": lambda x: (x @ x.t(), x.t() @ x, F.linear(x.relu(), x[: x.shape[0] // 2 + 1] * 2), x.double() @ x.t().double()),
    "batched products": lambda x: torch.stack((x, x + 1)) @ torch.stack((x.t(), x.t() * 2)),
    "convolution": lambda x: F.conv2d(channels(x, 12), filters(20, 12, 3, 3), padding=1).relu(),
    "convolution with strides": lambda x: F.conv2d(channels(x, 12), filters(40, 12, 5, 3), stride=2, padding=2),
    "convolution without padding": lambda x: F.conv2d(channels(x, 12).double(), filters(40, 12, 2, 2).double()) if min(x.shape) > 1 else x,
    "convolution over one axis": lambda x: F.conv1d(channels(x, 12).flatten(2), filters(40, 12, 5), padding=2),
    "channels innermost": lambda x: F.conv2d(channels(x, 12).contiguous(memory_format=torch.channels_last), filters(20, 12, 3, 3), padding=1),
    "each channel by itself": lambda x: F.conv2d(channels(x, 12), filters(12, 1, 3, 3), padding=1, groups=12),
    "each channel by itself with strides": lambda x: F.conv2d(channels(x, 12), filters(12, 1, 3, 3), stride=2, padding=1, groups=12),
    "patches": lambda x: F.conv2d(channels(x, 12), filters(40, 12, 2, 3), stride=(2, 3)) if x.shape[0] > 1 and x.shape[1] > 2 else x,
    "norm of product": lambda x: (x @ x.t()).relu().sum(1),
    "few rows": lambda x: (F.linear(rows_of(x, 1, 300), rows_of(x, 37, 300)), F.linear(rows_of(x, 5, 130), rows_of(x, 19, 130)).relu()),
    "attention": lambda x: F.scaled_dot_product_attention(channels(x, 2), channels(x + 1, 2), channels(x * 2, 2)),
    "attention, causal": lambda x: F.scaled_dot_product_attention(channels(x, 2), channels(x + 1, 2), channels(x * 2, 2), is_causal=True),
    "attention to few keys": lambda x: F.scaled_dot_product_attention(channels(x, 2), channels(x, 2)[:, :, ::3], channels(x, 2)[:, :, ::3]),
    "attention, turned": lambda x: (channels(x, 3) @ channels(x.t().contiguous(), 3)).softmax(-1) @ channels(x, 3).double().float(),
    "attention, blocks of keys": lambda x: F.scaled_dot_product_attention(heads_of(x, 37), heads_of(x + 1, 391), heads_of(x * 2, 391)),
    "attention, blocks of keys, causal": lambda x: F.scaled_dot_product_attention(*[heads_of(x * k, 203) for k in (1, 2, 3)], is_causal=True),
    "attention by hand": lambda x: hidden(channels(x, 2).double() @ channels(x, 2).double().mT).softmax(-1) @ channels(x, 2).double(),
}
SIZES = [(1, 1), (3, 5), (7, 17), (16, 33), (5, 127), (129, 3), (33, 257)]


if __name__ == "__main__":
    faulthandler.enable()
    torch.set_num_threads(1)
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    checked = 0
    for name, function in FUNCTIONS.items():
        for size in SIZES:
            checked += check(f"{name} {size}", function, lambda size=size: [torch.randn(size, generator=torch.Generator().manual_seed(1))])
    for k in range(seed, seed + count):
        made = program(("exact", "smooth")[k % 2], k)
        checked += check(f"program {k}", made.function(), lambda made=made: made.arguments(0))
    print(f"{checked} runs")
