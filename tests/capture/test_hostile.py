"""What a hostile but fair user does: each once gave a wrong result, a stale one, or an exception that eager does not raise."""

from __future__ import annotations

import array
import ctypes
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import thermit


def thrice(function, make):
    """Results of three calls (captured, then installed) beside eager's."""
    jitted = thermit.jit(function)
    for _ in range(3):
        torch.manual_seed(7)
        expected = function(*make())
        state = torch.get_rng_state()
        torch.manual_seed(7)
        yield jitted(*make()), expected
        assert torch.equal(torch.get_rng_state(), state)


def ones():
    return (torch.arange(3.0),)


@pytest.mark.filterwarnings("ignore::thermit.capture.recording.ThermitWarning")
class TestHostile:
    def test_a_changed_container_given_back_is_the_callers_own(self):
        def change(held, x):
            held["z"] = x * 2
            return held

        for wrap in (lambda d: d, lambda d: (d,), lambda d: [d], lambda d: {"q": (1, d)}):
            jitted = thermit.jit(lambda held, x, wrap=wrap: wrap(change(held, x)))
            for _ in range(3):
                mine = {"a": torch.ones(3)}
                result = jitted(mine, torch.ones(3))
                while result is not mine:
                    result = result["q"][1] if type(result) is dict else result[0]
                assert torch.equal(mine["z"], torch.full((3,), 2.0))

    @pytest.mark.parametrize("draw", ["state", "fork"])
    def test_the_generators_state_read_inside(self, draw):
        def state(x):
            first, kept, second = torch.rand(3), torch.get_rng_state(), torch.rand(3)
            torch.set_rng_state(kept)
            return first, second, x + torch.rand(3)

        def fork(x):
            with torch.random.fork_rng():
                first = torch.rand(3)
            return first, x + torch.rand(3)

        for result, expected in thrice(state if draw == "state" else fork, ones):
            assert all(map(torch.equal, result, expected))

    def test_random_functions_still_compile(self):
        thermit.jit(lambda x: torch.rand(3) + torch.nn.functional.dropout(x), strict=True)(torch.ones(3))

    @pytest.mark.parametrize(("dtype", "to"), [(torch.int8, torch.uint8), (torch.bool, torch.uint8), (torch.float32, torch.int32)])
    def test_bits_of_an_argument_as_another_type(self, dtype, to):
        for result, expected in thrice(lambda x: x.view(to), lambda: (torch.ones(4).to(dtype),)):
            assert result.dtype is to
            assert torch.equal(result, expected)

    def test_a_leaf_made_inside_is_a_tensor(self):
        for result, _ in thrice(lambda x: (x * 2).requires_grad_(), ones):
            assert type(result) is torch.Tensor
            (result * 3).sum().backward()
            assert torch.equal(result.grad, torch.full((3,), 3.0))

    def test_backward_of_what_was_made_inside(self):
        def leaf_and_loss(x):
            leaf = (x * 2).requires_grad_()
            return leaf, (leaf * leaf).sum()

        for (leaf, loss), _ in thrice(leaf_and_loss, ones):
            loss.backward()
            assert torch.equal(leaf.grad, 4 * torch.arange(3.0))

    def test_a_view_under_no_grad_whose_base_is_written(self):
        jitted = thermit.jit(lambda a: (a.view(-1), a.mul_(2)))
        with torch.no_grad():
            for _ in range(2):
                assert torch.equal(jitted(torch.ones(3).requires_grad_())[0].detach(), torch.full((3,), 2.0))

    def test_classes_of_tensors_made_inside(self):
        class Mine(torch.Tensor):
            pass

        made = (
            lambda x: (x * 2).as_subclass(Mine), lambda x: Mine(x * 2), lambda x: torch.Tensor._make_subclass(Mine, x * 2),
            lambda x: torch.nn.Parameter(x * 2), lambda x: torch.nn.Parameter(x * 2, requires_grad=False),
        )  # fmt: skip
        for make in made:
            for result, expected in thrice(make, ones):
                assert type(result) is type(expected)
                assert torch.equal(result, expected)
                assert result.requires_grad == expected.requires_grad

    def test_operations_of_other_threads(self):
        with ThreadPoolExecutor(3) as pool:
            for result, expected in thrice(lambda x: list(pool.map(lambda t: t * 2 + x, [x, x + 1, x * 2])), ones):
                assert all(map(torch.equal, result, expected))

    def test_memory_of_c_is_not_stale(self):
        class Pair(ctypes.Structure):
            _fields_ = (("v", ctypes.c_double),)

        values, floats, pair = array.array("d", [1.0]), (ctypes.c_float * 2)(), Pair()
        for function in (lambda x: x * values[0], lambda x: x * floats[0], lambda x: x * pair.v):
            jitted = thermit.jit(function)
            for k in range(4):
                values[0] = floats[0] = pair.v = float(k)
                assert torch.equal(jitted(torch.ones(2)), torch.full((2,), float(k)))

    def test_batch_norm_of_dtypes_that_eager_refuses(self):
        def norm(x, w):
            return torch.nn.functional.batch_norm(x, w, w, w, w)

        jitted = thermit.jit(norm)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="mixed dtype"):
                jitted(torch.ones(4, 3), torch.ones(3, dtype=torch.float64))

    def test_torch_compile_around_it(self):
        inner = thermit.jit(lambda x: x * 2)
        outer = torch.compile(lambda x: inner(x + 1) - 1, backend="eager")
        for n in (2, 2, 3):
            assert torch.equal(outer(torch.ones(n)), torch.full((n,), 3.0))

    def test_results_that_look_the_same_are_views_of_one_another(self):
        jitted = thermit.jit(lambda x: (lambda y: (y, y.view(2, 2), y.detach(), y))(x * 2))
        for _ in range(3):
            whole, view, detached, same = jitted(torch.ones(2, 2))
            assert whole is same
            assert len({id(t) for t in (whole, view, detached)}) == 3
            assert whole.data_ptr() == view.data_ptr() == detached.data_ptr()

    @pytest.mark.parametrize("cut", [lambda x: x.detach(), lambda x: x.data, lambda x: x.detach()[0], lambda x: x[0]])
    def test_autograd_sees_a_result_as_eagers(self, cut):
        def changed_for_backward(fn):
            x, w = torch.ones(2, 3), torch.ones(2, 3, requires_grad=True)
            cut_off, product = fn(x), (x * w).sum()
            cut_off.mul_(2)
            try:
                product.backward()
            except RuntimeError:
                return "refused", w.grad
            return "done", w.grad

        def changed_without_grad(fn):
            x = torch.ones(2, 3, requires_grad=True)
            with torch.no_grad():
                cut_off = fn(x)
            try:
                cut_off.mul_(2)
            except RuntimeError:
                return "refused", x.detach().clone()
            return x._version, x.detach().clone(), cut_off._is_view()

        jitted = thermit.jit(cut)
        for scene in (changed_for_backward, changed_without_grad):
            for _ in range(3):
                got, want = scene(jitted), scene(cut)
                assert all(torch.equal(g, w) if isinstance(w, torch.Tensor) else g == w for g, w in zip(got, want, strict=True))

    @pytest.mark.parametrize(
        ("ask", "change"),
        [
            (lambda x: x if x.grad is None else x - x.grad, lambda x: setattr(x, "grad", torch.ones(4))),
            (lambda x: x + x._version, lambda x: x.add_(1)),
            (lambda x: x + x.storage_offset(), lambda x: x.set_(torch.arange(9.0)[2:6])),
            (lambda x: x + (2 if x.is_inference() else 3), lambda x: x.set_(torch.ones(4))),
            (lambda x: x + (2 if x._base is None else 3), lambda x: x.add_(1)),
        ],
    )
    def test_what_only_the_argument_itself_knows_is_not_stale(self, ask, change):
        jitted, x = thermit.jit(ask), torch.ones(4)
        for k in range(4):
            assert torch.equal(jitted(x), ask(x))
            assert torch.equal(jitted(x[:]), ask(x[:]))
            if k:
                change(x)

    def test_one_object_or_two_over_the_same_memory(self):
        for function in (lambda x, y: x * (2 if x is y else 3), lambda x, y: (y, x)):
            jitted, a = thermit.jit(function), torch.ones(3)
            for x, y in ((a, a), (a, a[:]), (a, a), (a, a[:]), (a, torch.ones(3)), (a, a)):
                got, want = jitted(x, y), function(x, y)
                if type(want) is tuple:
                    assert got[0] is y
                    assert got[1] is x
                else:
                    assert torch.equal(got, want)

    def test_history_of_an_argument_without_grad_mode(self):
        jitted, leaf = thermit.jit(lambda x: x * (2 if x.is_leaf else 3) * (5 if x.grad_fn is None else 7)), torch.ones(2, requires_grad=True)
        made = leaf * 1
        with torch.no_grad():
            for x, factor in ((leaf, 10.0), (made, 21.0), (leaf, 10.0), (torch.ones(2), 10.0)):
                assert torch.equal(jitted(x), torch.full((2,), factor))

    def test_a_step_of_an_optimiser(self):
        def step(p, rate):
            p.add_(p.grad, alpha=-rate)
            p.grad = None

        jitted, p, q = thermit.jit(step), torch.ones(3), torch.ones(3)
        for k in range(4):
            p.grad, q.grad = torch.full((3,), float(k)), torch.full((3,), float(k))
            jitted(p, 0.5)
            step(q, 0.5)
            assert torch.equal(p, q)
            assert p.grad is None

    def test_an_exception_leaves_what_eager_leaves(self):
        def fail(x, write):
            drawn = torch.rand(3)
            if write:
                x.add_(1)
            raise ValueError(x * 2, x, drawn)

        for write in (False, True):
            for function in (fail, thermit.jit(fail), thermit.jit(fail, strict=True)):
                torch.manual_seed(7)
                x = torch.ones(3)
                with pytest.raises(ValueError) as caught:
                    function(x, write)
                double, same, drawn = caught.value.args
                assert torch.equal(double, torch.full((3,), 4.0 if write else 2.0))
                assert same is x
                after = torch.rand(3)
                torch.manual_seed(7)
                assert torch.equal(torch.cat([drawn, after]), torch.cat([torch.rand(3), torch.rand(3)]))

    @pytest.mark.parametrize("way", ["closure", "attribute", "imported inside", "submodule"])
    def test_draws_of_numpy(self, way):
        holder, module = types.SimpleNamespace(np=np), np.random

        def imported(x):
            import numpy

            return x * numpy.random.rand()

        ways = {
            "closure": lambda x, np=np: x * np.random.rand(),
            "attribute": lambda x: x * holder.np.random.rand(),
            "imported inside": imported,
            "submodule": lambda x: x * module.rand(),
        }
        jitted = thermit.jit(ways[way])
        results = []
        for function in (ways[way], jitted):
            np.random.seed(3)
            results.append([function(torch.ones(1)).item() for _ in range(4)])
        assert results[0] == results[1]
        assert len(set(results[0])) == 4

    @pytest.mark.parametrize("name", ["get_ident", "get_native_id"])
    def test_which_thread_it_is(self, name):
        ask = getattr(threading, name)
        jitted = thermit.jit(lambda x: x * (ask() % 1009))
        for _ in range(2):
            assert jitted(torch.ones(1)).item() == ask() % 1009
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(lambda: jitted(torch.ones(1)).item() == ask() % 1009).result()

    def test_uninitialised_memory_of_deterministic_algorithms(self):
        jitted = thermit.jit(lambda x: (torch.empty(3) + x, torch.empty(2, dtype=torch.int16), torch.empty_like(x)))
        torch.use_deterministic_algorithms(True)
        try:
            for _ in range(2):
                added, whole, like = jitted(torch.ones(3))
                assert added.isnan().all()
                assert (whole == 32767).all()
                assert like.isnan().all()
        finally:
            torch.use_deterministic_algorithms(False)
