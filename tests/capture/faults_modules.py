"""Changes to modules: attributes, parameters, children, hooks, flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from watched import HANDLES, Build, Fault, vector

FAULTS: dict[str, Build] = {}


def fault(build: Build) -> Build:
    FAULTS[build.__name__] = build
    return build


class Scaled(nn.Module):
    factor = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.register_buffer("scale", torch.ones(3))
        self.k = 1.0
        self.options = {"act": "relu"}

    def forward(self, x: Any) -> Any:
        x = self.lin(x) * self.scale * self.k * self.factor
        for layer in self.layers:
            x = layer(x) * layer.out_features
        return x.relu() if self.options["act"] == "relu" else x


def module_fault(change: Callable[[Any], Any]) -> Callable[[], Fault]:
    def build() -> Fault:
        module = Scaled().requires_grad_(False)
        return module, (vector(),), lambda: change(module)

    return build


FAULTS |= {
    "module: attribute": module_fault(lambda m: setattr(m, "k", 2.0)),
    "module: class attribute shadowed": module_fault(lambda m: setattr(m, "factor", 3.0)),
    "module: option in a dict": module_fault(lambda m: m.options.update(act="none")),
    "module: buffer of another dtype": module_fault(lambda m: setattr(m, "scale", torch.ones(3, dtype=torch.float64))),
    "module: parameter requires grad": module_fault(lambda m: m.lin.weight.requires_grad_()),
    "module: parameter of another dtype": module_fault(lambda m: m.lin.double()),
    "module: parameter deleted": module_fault(lambda m: delattr(m.lin, "bias")),
    "module: parameter set to None": module_fault(lambda m: setattr(m.lin, "bias", None)),
    "module: child replaced": module_fault(lambda m: setattr(m, "lin", nn.Identity())),
    "module: child in a list replaced": module_fault(lambda m: m.layers.__setitem__(0, nn.Identity())),
    "module: list appended": module_fault(lambda m: m.layers.append(nn.Linear(3, 3))),
    "module: list shortened": module_fault(lambda m: m.layers.__delitem__(1)),
    "module: attribute of a child in a list": module_fault(lambda m: setattr(m.layers[1], "out_features", 4)),
    "module: forward hook": module_fault(lambda m: m.lin.register_forward_hook(lambda m, i, o: o * 2)),
    "module: forward pre-hook": module_fault(lambda m: m.register_forward_pre_hook(lambda m, i: None)),
    "module: forward patched": module_fault(lambda m: setattr(m.lin, "forward", lambda x: x)),
    "module: global hook": module_fault(lambda m: HANDLES.append(nn.modules.module.register_module_forward_hook(lambda m, i, o: None))),
    "module: class changed": module_fault(lambda m: setattr(m.lin, "__class__", Doubling)),
}


class Doubling(nn.Linear):
    def forward(self, x: Any) -> Any:
        return super().forward(x) * 2


def patched(change: Callable[[Any], Any]) -> Callable[[], Fault]:
    """A module whose child has a forward of its own when it is traced."""

    def build() -> Fault:
        module = Scaled().requires_grad_(False)
        module.lin.forward = lambda x: x * 2
        return module, (vector(),), lambda: change(module)

    return build


class Computed(nn.Module):
    forward = lambda self, x: x * self.gain  # noqa: E731

    @property
    def gain(self) -> float:
        return 2.0


class Doubled(Computed):
    gain = 4.0


FAULTS |= {
    "module: patched forward patched again": patched(lambda m: setattr(m.lin, "forward", lambda x: x * 3)),
    "module: patched forward removed": patched(lambda m: delattr(m.lin, "forward")),
    "module: hook beside a patched forward": patched(lambda m: m.lin.register_forward_hook(lambda m, i, o: o + 1)),
    "module: class changed beside a patched forward": patched(lambda m: setattr(m.lin, "__class__", Doubling)),
}


@fault
def forward_of_another_name() -> Fault:
    before = Computed.forward
    HANDLES.append(type("Handle", (), {"remove": lambda self: setattr(Computed, "forward", before)})())
    return Computed(), (vector(),), lambda: setattr(Computed, "forward", lambda self, x: x + 1)


@fault
def class_whose_attribute_is_a_property() -> Fault:
    module = Computed()
    return module, (vector(),), lambda: setattr(module, "__class__", Doubled)


@fault
def training_flag() -> Fault:
    module = nn.Sequential(nn.Dropout(0.5), nn.ReLU())
    return module, (vector(),), lambda: module.eval()


@fault
def dropout_probability() -> Fault:
    module = nn.Sequential(nn.Dropout(0.5), nn.ReLU())
    return module, (vector(),), lambda: setattr(module[0], "p", 0.9)


@fault
def module_in_a_closure() -> Fault:
    module = nn.Sequential(nn.Dropout(0.5))
    return lambda x: module(x) + 1, (vector(),), lambda: module.train(False)


@fault
def batch_norm_momentum() -> Fault:
    module = nn.BatchNorm1d(3).requires_grad_(False)
    return module, (torch.ones(2, 3),), lambda: setattr(module, "momentum", None)


@fault
def sequential_child_replaced() -> Fault:
    module = nn.Sequential(nn.ReLU(), nn.ReLU())
    return module, (vector(),), lambda: module.__setitem__(0, nn.Tanh())


@fault
def module_hook_that_is_there() -> Fault:
    module = nn.Sequential(nn.ReLU())
    handle = module[0].register_forward_hook(lambda m, i, o: o * 10)
    return module, (vector(),), handle.remove


@fault
def hook_reads_a_setting() -> Fault:
    module, setting = nn.Sequential(nn.ReLU()), {"k": 1.0}
    module[0].register_forward_hook(lambda m, i, o: o * setting["k"])
    return module, (vector(),), lambda: setting.update(k=2.0)


@fault
def attention_weight_replaced() -> Fault:
    module = nn.MultiheadAttention(4, 2, batch_first=True).requires_grad_(False).eval()
    x = torch.ones(1, 2, 4)
    return lambda x: module(x, x, x)[0], (x,), lambda: setattr(module.out_proj, "weight", nn.Parameter(torch.ones(4, 4, dtype=torch.float64)))


@fault
def parametrization_removed() -> Fault:
    module = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)).requires_grad_(False)
    return module, (vector(),), lambda: nn.utils.parametrize.remove_parametrizations(module, "weight")
