"""Plans: buffers that live at one time never overlap, updates are written where it cannot be seen, nothing stops after Commit."""

import random

import pytest
import torch

import thermit
from thermit.ir import build as b
from thermit.ir import prims as p
from thermit.ir.node import Graph, Output, Return, Update
from thermit.ir.prims import Call, Slot
from thermit.ir.types import FLOAT32, TensorType
from thermit.schedule.kernel import CallStep, Kernel, Launch, Load, Schedule, Stored
from thermit.schedule.memory import plan
from thermit.schedule.plan import Commit, RunCall, RunCopy, RunKernel

T = TensorType((100,), FLOAT32)
ONE = (1,)


def launches(steps, stopping=()):
    return {s.name: Launch(s.name, 100, 8, 50.0, s.name in stopping) for s in steps if isinstance(s, Kernel)}


def make(inputs, steps, outputs=(), updates=(), stopping=(), returns=None):
    graph = Graph(tuple(inputs), ((1,),) * len(inputs), tuple(Output(o, ONE) for o in outputs), tuple(updates), (),
                  tuple(Return("output", i) for i in range(len(outputs))) if returns is None else returns)  # fmt: skip
    return plan(graph, Schedule(tuple(steps)), launches(steps, stopping))


def roles(made, step):
    return [made.buffers[i].role for i in step.buffers]


def test_temps_are_reused_and_never_overlap_while_they_live():
    rng = random.Random(0)
    x = b.graph_input(0, T)
    for _ in range(50):
        values, steps = [x], []
        for k in range(12):
            read = rng.sample(values, min(len(values), 2))
            node = b.const(float(k), FLOAT32, (100,))
            for r in read:
                node = b.add(node, r)
            steps.append(Kernel(f"k{k}", (Stored(node, ONE),), tuple(Load(r, ONE) for r in read)))
            values.append(node)
        out = b.neg(values[-1])
        steps.append(Kernel("last", (Stored(out, ONE, "output", 0),), (Load(values[-1], ONE),)))
        made = make([x], steps, [out])
        uses = {}
        for k, step in enumerate(made.steps):
            for i in step.buffers:
                uses.setdefault(i, []).append(k)
        temps = [(made.buffers[i], min(u), max(u)) for i, u in uses.items() if made.buffers[i].role == "temp"]
        for n, (a, first, last) in enumerate(temps):
            assert a.index % 64 == 0 and a.index + a.nbytes <= made.arena_bytes
            for c, begin, end in temps[n + 1 :]:
                if first <= end and begin <= last:
                    assert a.index + a.nbytes <= c.index or c.index + c.nbytes <= a.index
    assert made.arena_bytes < 12 * 448


def test_map_update_is_written_in_place_after_commit():
    x, y = b.graph_input(0, T), b.graph_input(1, T)
    new = b.add(b.mul(x, 2.0), y)
    made = make([x, y], [Kernel("k", (Stored(new, ONE, "update", 0),), (Load(x, ONE), Load(y, ONE)))], updates=[Update(0, new)])
    assert [type(s) for s in made.steps] == [Commit, RunKernel]
    assert made.steps[1].buffers == (0, 1, 0) and made.arena_bytes == 0 and made.updates == (0,)


@pytest.mark.parametrize("new", [lambda x: b.flip(x, (0,)), lambda x: b.add(x, b.broadcast_to(b.reduce(p.SUM, x, (0,)), (100,)))])
def test_update_that_moves_or_reduces_goes_through_a_temp(new):
    x = b.graph_input(0, T)
    value = new(x)
    made = make([x], [Kernel("k", (Stored(value, ONE, "update", 0),), (Load(x, ONE),))], updates=[Update(0, value)])
    assert [type(s) for s in made.steps] == [RunKernel, Commit, RunCopy]
    assert roles(made, made.steps[0]) == ["input", "temp"] and made.steps[2].target == 0


def test_old_value_read_later_keeps_the_input():
    x = b.graph_input(0, T)
    new, out = b.add(x, 1.0), b.flip(x, (0,))
    steps = [Kernel("a", (Stored(new, ONE, "update", 0), Stored(new, ONE)), (Load(x, ONE),)),
             Kernel("b", (Stored(b.add(out, new), ONE, "output", 0),), (Load(x, ONE), Load(new, ONE)))]  # fmt: skip
    made = make([x], steps, [b.add(out, new)], [Update(0, new)])
    assert [type(s) for s in made.steps] == [RunKernel, RunKernel, Commit, RunCopy]


def test_two_updates_that_read_each_other_are_written_at_once():
    """Stores of one body act at once: an optimizer's step needs no copies."""
    x, y = b.graph_input(0, T), b.graph_input(1, T)
    steps = [Kernel("swap", (Stored(y, ONE, "update", 0), Stored(x, ONE, "update", 1)), (Load(x, ONE), Load(y, ONE)))]
    made = make([x, y], steps, updates=[Update(0, y), Update(1, x)])
    assert [type(s) for s in made.steps] == [Commit, RunKernel] and made.steps[1].buffers == (0, 1, 0, 1)


@pytest.mark.parametrize("other", [lambda x: b.flip(x, (0,)), lambda x: b.reduce(p.SUM, x, (0,))])
def test_another_store_of_the_kernel_that_reads_elsewhere_keeps_the_input(other):
    x = b.graph_input(0, T)
    new, out = b.add(x, 1.0), other(x)
    kernel = Kernel("k", (Stored(new, ONE, "update", 0), Stored(out, (1,) * len(out.shape), "output", 0)), (Load(x, ONE),))
    graph = Graph((x,), (ONE,), (Output(out, (1,) * len(out.shape)),), (Update(0, new),))
    assert [type(s) for s in plan(graph, Schedule((kernel,)), launches([kernel])).steps] == [RunKernel, Commit, RunCopy]


def test_updates_sink_below_what_can_stop():
    x, y = b.graph_input(0, T), b.graph_input(1, T)
    new, out = b.add(x, 1.0), b.mul(y, 2.0)
    steps = [Kernel("a", (Stored(new, ONE, "update", 0),), (Load(x, ONE),)), Kernel("b", (Stored(out, ONE, "output", 0),), (Load(y, ONE),))]
    made = make([x, y], steps, [out], [Update(0, new)], stopping=("b",))
    assert [s.kernel if isinstance(s, RunKernel) else type(s) for s in made.steps] == ["b", Commit, "a"]


def test_update_by_a_kernel_that_can_stop_goes_through_a_temp():
    x = b.graph_input(0, T)
    new = b.add(x, 1.0)
    made = make([x], [Kernel("a", (Stored(new, ONE, "update", 0),), (Load(x, ONE),))], updates=[Update(0, new)], stopping=("a",))
    assert [type(s) for s in made.steps] == [RunKernel, Commit, RunCopy]


def test_call_reads_temps_and_its_result_is_an_output():
    x = b.graph_input(0, T)
    doubled = b.mul(x, 2.0)
    call = b.call(Call(torch.ops.aten.sort.default, (Slot(0),), (), (ONE,), ((T, ONE), (TensorType((100,), FLOAT32), ONE))), [doubled])
    values, extra = b.result(call, 0), b.result(call, 1)
    steps = [Kernel("a", (Stored(doubled, ONE),), (Load(x, ONE),)), CallStep(call, (Load(doubled, ONE),), (0, None)),
             Kernel("b", (Stored(b.neg(extra), ONE, "output", 1),), (Load(extra, ONE),))]  # fmt: skip
    made = make([x], steps, [values, b.neg(extra)])
    kernel, run, last = made.steps
    assert isinstance(run, RunCall) and run.buffers == (kernel.buffers[1],) and run.results == (made.outputs[0], last.buffers[0])
    assert [made.buffers[i].role for i in made.outputs] == ["result", "output"]


def test_update_by_a_copy_of_a_temp_is_written_in_place():
    """Whatever the temp was made of: only the temp is read."""
    x = b.graph_input(0, T)
    value = b.flip(x, (0,))
    steps = [
        Kernel("made", (Stored(value, ONE),), (Load(x, ONE),)),
        Kernel("copy", (Stored(value, ONE, "update", 0),), (Load(value, ONE),)),
    ]
    made = make([x], steps, updates=[Update(0, value)], stopping=("made",))
    assert [type(s) for s in made.steps] == [RunKernel, Commit, RunKernel]
    assert roles(made, made.steps[0]) == ["input", "temp"] and roles(made, made.steps[2]) == ["temp", "input"]


def test_update_with_gaps_keeps_its_strides_in_the_temp():
    x = b.graph_input(0, TensorType((4, 3), FLOAT32))
    new = b.flip(x, (0,))
    graph = Graph((x,), ((10, 2),), (), (Update(0, new),))
    steps = (Kernel("k", (Stored(new, (10, 2), "update", 0),), (Load(x, (10, 2)),)),)
    made = plan(graph, Schedule(steps), launches(steps))
    temp = made.buffers[made.steps[0].buffers[1]]
    assert temp.strides == (10, 2) and temp.nbytes == (3 * 10 + 2 * 2 + 1) * 4 and made.arena_bytes >= temp.nbytes


class TestWritesIntoAKept:
    """A cache that grows by a row: written in place, read in the same call."""

    def grow(self, cache, count, row):
        at = torch.arange(1) + count
        count.add_(1)
        cache.index_copy_(1, at, row)
        return (cache.sort(1)[0] * 2).sum(), cache.sum(1)

    def made(self):
        torch.manual_seed(0)
        return torch.randn(3, 8, 4), torch.tensor(2), torch.randn(3, 1, 4)

    def test_results_and_passes(self):
        jitted = thermit.jit(self.grow, strict=True)
        cache, count, row = self.made()
        mine, own = cache.clone(), count.clone()
        for _ in range(3):
            for got, want in zip(jitted(mine, own, row), self.grow(cache, count, row), strict=True):
                torch.testing.assert_close(got, want)
            assert torch.equal(mine, cache) and torch.equal(own, count)
        plan = jitted.lower(*self.made()).compilation.plan
        assert not any(isinstance(s, RunCopy) for s in plan.steps)
        cache = next(k for k, buffer in enumerate(plan.buffers) if buffer.role == "input" and buffer.sizes == (3, 8, 4))
        size = plan.buffers[cache].sizes
        moves = [s for s in plan.steps if isinstance(s, RunKernel) and plan.buffers[s.buffers[-1]].sizes == size]
        assert len(moves) == 2 and moves[-1].buffers[-1] == cache  # a new one for the readers, then the cache itself

    def test_a_place_that_is_not_there_leaves_all_as_it_was(self):
        jitted = thermit.jit(self.grow)
        cache, count, row = self.made()
        jitted(cache.clone(), count.clone(), row)
        before = cache.clone()
        with pytest.raises(IndexError):
            jitted(cache, torch.tensor(8), row)
        assert torch.equal(cache, before)
