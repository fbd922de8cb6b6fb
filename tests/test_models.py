"""Networks of transformers, small and with random weights: compiled as a whole, with eager's results, as users call them."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import thermit

os.environ["HF_HUB_OFFLINE"] = "1"
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
WORDS = torch.tensor([[5, 17, 3, 61, 8, 44, 2], [9, 1, 33, 7, 12, 5, 60]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]])


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def bert(**options: Any) -> Any:
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    return transformers.BertModel(transformers.BertConfig(**sizes, max_position_embeddings=16, **options)).eval()


def gpt2() -> Any:
    config = transformers.GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4)
    return transformers.GPT2LMHeadModel(config).eval()


def resnet() -> Any:
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[16, 24], depths=[1, 2], num_labels=5)
    return transformers.ResNetForImageClassification(config).eval()


WORD_SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
LAYERS = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
WIDTHS = {"encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "d_model": 32, "vocab_size": 64}
SPOKEN = {
    "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip


def words(start: int) -> dict[str, Any]:
    return {"input_ids": WORDS.roll(start), "attention_mask": MASK}


def answers(start: int) -> dict[str, Any]:
    return {**words(start), "decoder_input_ids": WORDS[:, :5].roll(start)}


def sounds(start: int) -> dict[str, Any]:
    return {"input_features": torch.randn(1, 8, 40), "decoder_input_ids": WORDS[:1, :5].roll(start)}


def images(start: int) -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def t5() -> Any:
    config = transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4, decoder_start_token_id=0)
    return transformers.T5ForConditionalGeneration(config)


# Each asks its configuration in a way of its own: copies that are changed, validators, a table that makes what is asked for, scripts.
NETWORKS: dict[str, tuple[Any, Any]] = {
    "t5": (t5, answers),
    "bart": (lambda: transformers.BartForConditionalGeneration(transformers.BartConfig(**LAYERS, **WIDTHS, max_position_embeddings=32)), answers),
    "whisper": (lambda: transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**LAYERS, **WIDTHS, **SPOKEN)), sounds),
    "mamba": (
        lambda: transformers.MambaForCausalLM(transformers.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, state_size=4)),
        lambda start: {"input_ids": WORDS.roll(start)},
    ),
    "qwen3": (lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**WORD_SIZES, num_key_value_heads=2, head_dim=8)), words),
    "deberta": (
        lambda: transformers.DebertaV2Model(transformers.DebertaV2Config(**WORD_SIZES, relative_attention=True, pos_att_type=["p2c", "c2p"])),
        words,
    ),
    "vit": (
        lambda: transformers.ViTModel(
            transformers.ViTConfig(**{k: v for k, v in WORD_SIZES.items() if k != "vocab_size"}, image_size=32, patch_size=8)
        ),
        images,
    ),
}


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors in an output, those of its cache too."""
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else vars(value).values()
    return [t for part in parts if isinstance(part, torch.Tensor | list | tuple | dict) or hasattr(part, "__dict__") for t in tensors(part)]


@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str) -> None:
    """The first calls of the plain module fetch what the library loads late."""
    make, inputs = NETWORKS[name]
    model = make().eval()
    jitted = thermit.jit(model, strict=True)
    for start in range(2):
        given = inputs(start)
        want = model(**given)
        got = jitted(**given)
        assert type(got) is type(want)
        for mine, its in zip(tensors(got), tensors(want), strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)
            assert mine.stride() == its.stride()
    assert compiled(jitted) == 1


def assert_same(got: Any, want: Any) -> None:
    """Outputs of one class with the same entries."""
    assert type(got) is type(want) and list(got) == list(want)
    for name in want:
        if isinstance(want[name], torch.Tensor):
            torch.testing.assert_close(got[name], want[name], rtol=1e-5, atol=1e-6)
            assert got[name].stride() == want[name].stride() and getattr(got, name) is got[name]


def compiled(jitted: Any) -> int:
    """How many signatures were compiled; none may run eagerly."""
    state = type(jitted).__thermit_jitted__._state
    assert not any(state.live.values())
    return int(state.compiled)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("inputs", [{}, {"attention_mask": MASK}], ids=["whole", "padded"])
def test_bert(attention: str, inputs: dict[str, Any]) -> None:
    model = bert(attn_implementation=attention)
    jitted = thermit.jit(model, strict=True)
    for words in (WORDS, WORDS + 1):
        assert_same(jitted(input_ids=words, **inputs), model(input_ids=words, **inputs))
    assert compiled(jitted) == 1


def test_hidden_states_and_tuples() -> None:
    model = bert()
    jitted = thermit.jit(model, strict=True)
    want = model(input_ids=WORDS, output_hidden_states=True)  # the first such call puts hooks into the model: that one cannot be compiled
    got = jitted(input_ids=WORDS, output_hidden_states=True)
    assert_same(got, want)
    for a, b in zip(got.hidden_states, want.hidden_states, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    plain = jitted(input_ids=WORDS, return_dict=False)
    assert type(plain) is tuple
    torch.testing.assert_close(plain[0], want[0], rtol=1e-5, atol=1e-6)


def test_weights_that_change_are_seen() -> None:
    model = bert()
    jitted = thermit.jit(model, strict=True)
    jitted(input_ids=WORDS)
    model.encoder.layer[1].output.dense.weight.mul_(1.5)
    assert_same(jitted(input_ids=WORDS), model(input_ids=WORDS))
    model.load_state_dict(bert().state_dict())
    assert_same(jitted(input_ids=WORDS), model(input_ids=WORDS))
    assert compiled(jitted) == 1


def test_gpt2_gives_a_cache_of_its_own_each_time() -> None:
    model = gpt2()
    jitted = thermit.jit(model, strict=True)
    results = [jitted(input_ids=WORDS + k) for k in range(2)]
    for k, got in enumerate(results):
        want = model(input_ids=WORDS + k)
        assert_same(got, want)
        assert type(got.cache) is type(want.cache)
        for mine, layer in zip(got.cache.layers, want.cache.layers, strict=True):
            torch.testing.assert_close(mine.keys, layer.keys, rtol=1e-5, atol=1e-6)
            assert mine.is_initialized and mine.get_seq_length() == layer.get_seq_length()
    assert results[0].cache is not results[1].cache and compiled(jitted) == 1
    longer = model(input_ids=WORDS[:, :1], cache=results[0].cache)  # eager goes on with it
    assert longer.logits.shape == (2, 1, 64)


def generated(run: Any, model: Any, count: int = 5) -> tuple[list[torch.Tensor], Any]:
    """Words one by one, each from those before it, with a cache of fixed size that is written in place."""
    cache = transformers.StaticCache(config=model.config, max_cache_len=16)
    output = model(input_ids=WORDS[:1], cache=cache, use_cache=True)
    found = []
    for _ in range(count):
        output = run(input_ids=output.logits[:, -1:].argmax(-1), cache=cache, use_cache=True)
        assert output.cache is cache
        found.append(output.logits)
    return found, cache


def test_gpt2_word_by_word() -> None:
    model = gpt2()
    jitted = thermit.jit(model, strict=True)
    (got, cache), (want, plain) = (generated(run, model) for run in (jitted, model))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    for mine, layer in zip(cache.layers, plain.layers, strict=True):
        torch.testing.assert_close(mine.keys, layer.keys, rtol=1e-5, atol=1e-6)
        assert torch.equal(mine.cumulative_length, layer.cumulative_length)
    assert compiled(jitted) == 1


def test_a_growing_cache_gives_the_same_words() -> None:
    """Each word has another size: what is not compiled runs eagerly, and the cache is the caller's own."""
    model = gpt2()
    jitted = thermit.jit(model)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for run in (jitted, model):
            cache = transformers.DynamicCache(config=model.config)
            output = model(input_ids=WORDS[:1], cache=cache, use_cache=True)
            for _ in range(4):
                output = run(input_ids=output.logits[:, -1:].argmax(-1), cache=cache, use_cache=True)
            assert cache.get_seq_length() == 11
            found.append((output.logits, cache.layers[1].keys))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_resnet() -> None:
    model = resnet()
    jitted = thermit.jit(model, strict=True)
    for image in (torch.randn(1, 3, 32, 32), torch.randn(1, 3, 32, 32)):
        assert_same(jitted(pixel_values=image), model(pixel_values=image))
    assert compiled(jitted) == 1


def test_training_runs_eagerly_and_back() -> None:
    model = resnet()
    jitted = thermit.jit(model)
    image = torch.randn(2, 3, 32, 32)
    jitted(pixel_values=image)
    with torch.enable_grad():
        model.train()
        loss = jitted(pixel_values=image, labels=torch.tensor([1, 2])).loss
        loss.backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
    model.eval()
    assert_same(jitted(pixel_values=image), model(pixel_values=image))


def test_equal_layers_share_kernels() -> None:
    model = bert()
    jitted = thermit.jit(model, strict=True)
    jitted(input_ids=WORDS)
    state = type(jitted).__thermit_jitted__._state
    (variant,) = [v for found in state.variants.values() for v in found]
    codes = variant.compilation.codes.values()
    assert len({(id(code.module), code.symbol) for code in codes}) <= 0.7 * len(codes)


def test_two_threads_at_once() -> None:
    model = bert()
    jitted = thermit.jit(model, strict=True)
    requests = [WORDS, WORDS + 1]
    wants = [model(input_ids=words, attention_mask=MASK).last_hidden_state for words in requests]
    jitted(input_ids=WORDS, attention_mask=MASK)
    wrong: list[Any] = []

    def serve(words: torch.Tensor, want: torch.Tensor) -> None:
        with torch.no_grad():
            for _ in range(100):
                got = jitted(input_ids=words, attention_mask=MASK).last_hidden_state
                if not torch.allclose(got, want, rtol=1e-5, atol=1e-6):
                    wrong.append(got)

    threads = [threading.Thread(target=serve, args=pair) for pair in zip(requests, wants, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and compiled(jitted) == 1


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux")
def test_many_calls_keep_no_memory() -> None:
    model = bert()
    jitted = thermit.jit(model, strict=True)

    def resident_bytes() -> int:
        with open("/proc/self/statm") as sizes:
            return int(sizes.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for _ in range(300):
        jitted(input_ids=WORDS)
    before = resident_bytes()
    for _ in range(10_000):
        jitted(input_ids=WORDS)
    assert resident_bytes() - before < 1 << 20


def test_generate_with_a_static_cache() -> None:
    """Each `generate` makes a cache; the words after the first are compiled once for all of them."""
    model = gpt2()
    jitted = thermit.jit(model)
    state = type(jitted).__thermit_jitted__._state
    options = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": "static", "eos_token_id": None, "pad_token_id": 0}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for k in range(5):
            assert torch.equal(jitted.generate(WORDS[:1].roll(k), **options), model.generate(WORDS[:1].roll(k), **options))
            if k == 1:  # the first time PyTorch does not mark the tensors of the cache
                settled = state.compiled
    assert state.compiled == settled <= 2 and state.live[False] == 1
    assert sum(issubclass(w.category, thermit.ThermitWarning) for w in caught) == 1


def test_generate_with_a_growing_cache() -> None:
    """No word is compiled: what the model changes is learnt from two, and said once."""
    model = gpt2()
    jitted = thermit.jit(model)
    state = type(jitted).__thermit_jitted__._state
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for k in range(3):
            assert torch.equal(jitted.generate(WORDS[:1].roll(k), **options), model.generate(WORDS[:1].roll(k), **options))
    assert state.compiled == 0 and state.live[False] == 3
    assert sum(issubclass(w.category, thermit.ThermitWarning) for w in caught) == 2
