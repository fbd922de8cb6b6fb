"""What a stand-in looks like to user code, and what becomes of one that is kept."""

from __future__ import annotations

import pytest
import torch

import thermit
from thermit import LeakedStandInError
from thermit.capture.live import _AUTOGRAD
from thermit.capture.recorder import Recorder
from thermit.capture.standin import READS, TOUCHES, StandIn, is_stand_in


class Blind:
    """A watch that knows no tensor."""

    native = ""

    def find(self, tensor):
        return None

    def pause(self):
        pass

    def resume(self):
        pass


def seen(f, *args):
    """What f sees while it is traced."""
    found = []
    recorder = Recorder(Blind(), strict=True)
    stand_ins = [recorder.add_input(a, None) for a in args]
    with recorder:
        found.append(f(*stand_ins))
    return found[0]


def test_it_looks_like_a_tensor():
    x = torch.randn(6, 4).t()
    assert seen(lambda t: is_stand_in(t) and not is_stand_in(x), x)
    assert seen(lambda t: isinstance(t, torch.Tensor) and torch.is_tensor(t) and t.__class__ is torch.Tensor, x)
    for look in (
        lambda t: (t.shape, t.stride(), t.dtype, t.device, t.layout, t.dim(), t.numel(), len(t), t.storage_offset(), t.element_size(), t.nbytes),
        lambda t: (t.is_contiguous(), t.requires_grad, t.is_leaf, t.grad, t.is_sparse, t.is_cpu, t.is_floating_point()),
        lambda t: (t.is_conj(), t.is_neg(), t.is_inference(), t.type(), t.T.shape, t.size(0), t.ndim, t.itemsize, t.is_complex()),
    ):
        assert seen(look, x) == look(x)


def test_operations_on_it_are_metadata_of_eager():
    x = torch.randn(3, 4, 5)
    functions = [lambda t: t[1:, ::2], lambda t: t.permute(2, 0, 1) + 1, lambda t: t.sum(1, keepdim=True), lambda t: t > 0]
    for f in (*functions, lambda t: t.double().softmax(0)):
        got, want = seen(f, x), f(x)
        assert (got.shape, got.stride(), got.dtype, got.storage_offset()) == (want.shape, want.stride(), want.dtype, want.storage_offset())


@pytest.mark.parametrize("name", [n for n in (*READS, *TOUCHES) if n in vars(StandIn) and n not in _AUTOGRAD])
def test_reading_methods_are_refused_under_strict(name):
    x = torch.randn(())
    args = {"map_": (x, lambda a, b: a), "apply_": (float,), "is_set_to": (x,), "__format__": ("",), "__reduce_ex__": (2,), "__deepcopy__": ({},)}
    with pytest.raises((thermit.DataDependentError, thermit.UnsupportedError), match="cannot be compiled as a whole"):
        seen(lambda t: getattr(t, name)(*args.get(name, ())), x + 0)


def test_a_kept_stand_in_says_so():
    kept = []
    recorder = Recorder(Blind())
    t = recorder.add_input(torch.randn(2, 3), None)
    with recorder:
        kept.append(t * 2)
    recorder.state = "closed"
    for use in (lambda t: t + 1, lambda t: t.tolist(), lambda t: repr(t), lambda t: t.sum()):
        with pytest.raises(LeakedStandInError, match=r"\[2,3\]"):
            use(kept[0])


def test_a_number_made_in_the_function_may_be_read():
    assert seen(lambda t: (float(torch.tensor(2.5)), torch.ones(()).item(), bool(torch.tensor(False)), torch.zeros(1).tolist()), torch.randn(3)) == (
        2.5,
        1.0,
        False,
        [0.0],
    )
