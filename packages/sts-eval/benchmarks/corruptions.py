"""Where the time of a cell of ImageNet-C goes, and what reading each image once for all models saves.

    python packages/sts-eval/benchmarks/corruptions.py     (a minute or two on one core; --quick for a look)

1. Loading (reading, decoding, batching) and the forward pass of ResNet-50 at 224 px, CPU time per image: a cell must be
   bound by the forward pass, so loading has to stay below a tenth of it. Beside them the same cell made on the fly.
2. Two models in one pass against two passes, with a network so small that loading matters.
3. CPU time of generating each corruption.

The images are noise with the spectrum of photographs, JPEG of quality 85 as in the release. Times are the minimum of
interleaved rounds, one thread; only ratios within one run mean anything. The exit code is 1 if a bar does not hold.
"""

import argparse
import io
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import timm
import torch
from PIL import Image
from torch import nn

from sts_eval import CleanFolder, CorruptionConfig, FolderCorruptions, GeneratedCorruptions, evaluate_cell
from sts_eval.corruptions.benchmark import ALL_CORRUPTIONS
from sts_eval.corruptions.functions import corrupt_image

NUM_CLASSES = 4
LOADING_BAR = 0.10
SHARED_BAR = 1.0


def photograph(key: int, side: int = 224) -> np.ndarray:
    """Noise whose amplitude falls as 1/f, as that of photographs does."""
    generator = np.random.default_rng(key)
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None])
    spectrum = np.fft.rfft2(generator.normal(size=(3, side, side))) / np.maximum(frequency, 1 / side)
    plane = np.fft.irfft2(spectrum, s=(side, side))
    pixels = 128 + 50 * plane / plane.std()
    image: np.ndarray = np.clip(pixels, 0, 255).astype(np.uint8).transpose(1, 2, 0)
    return image


def write_cell(root: Path, num_images: int) -> FolderCorruptions:
    for index in range(num_images):
        buffer = io.BytesIO()
        Image.fromarray(photograph(index)).save(buffer, "JPEG", quality=85)
        path = root / "fog" / "3" / f"class{index % NUM_CLASSES}" / f"{index}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(buffer.getvalue())
    return FolderCorruptions(root, corruptions=["fog"], severities=[3])


def fastest(jobs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """CPU seconds, minimum over interleaved rounds."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            start = time.process_time()
            job()
            seconds[name].append(time.process_time() - start)
    return {name: min(values) for name, values in seconds.items()}


def loading_bar(source: FolderCorruptions, num_images: int, rounds: int) -> tuple[bool, str]:
    """Whether a cell is bound by the forward pass, and that in a sentence."""
    cell = source.cell("fog", 3)
    clean = CleanFolder(source.root / "fog" / "3")
    made = GeneratedCorruptions(clean, corruptions=["fog"], severities=[3]).cell("fog", 3)
    made[0]
    config = CorruptionConfig(batch_size=16)
    model = {"resnet50": timm.create_model("resnet50", num_classes=NUM_CLASSES).to(memory_format=torch.channels_last)}
    found = fastest(
        {
            "loading": lambda: np.stack([cell[index][0] for index in range(num_images)]),
            "making": lambda: np.stack([made[index][0] for index in range(num_images)]),
            "whole cell": lambda: evaluate_cell(model, source, "fog", 3, config),
        },
        rounds,
    )
    forward = found["whole cell"] - found["loading"]
    share = found["loading"] / forward
    per_image = {name: 1e3 * value / num_images for name, value in found.items()}
    print(f"loading {per_image['loading']:.2f} ms an image ({1e3 / per_image['loading']:.0f} images/s on one core)")
    print(f"making  {per_image['making']:.2f} ms an image (fog on the fly): {found['making'] / forward:.3f} of forward")
    print(f"forward {1e3 * forward / num_images:.2f} ms an image (ResNet-50)")
    print(f"{1 / found['whole cell']:.3f} cells of {num_images} images per second")
    print(f"loading / forward {share:.3f}, bar {LOADING_BAR}: {'holds' if share < LOADING_BAR else 'DOES NOT HOLD'}")
    line = (
        f"A cell of ImageNet-C on one core, per 224 px image: reading and decoding {per_image['loading']:.1f} ms, or "
        f"making it on the fly {per_image['making']:.1f} ms (fog), and ResNet-50 {1e3 * forward / num_images:.0f} ms: "
        f"{3600 / (found['whole cell'] / num_images * 50_000):.2f} cells of 50,000 images per hour."
    )
    return share < LOADING_BAR, line


def shared_pass_bar(source: FolderCorruptions, rounds: int) -> tuple[bool, str]:
    """Whether one pass for two models is faster than two, and that in a sentence."""

    def small() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 8, 7, stride=8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, NUM_CLASSES)
        )

    models = {"sts": small(), "tma": small()}
    found = fastest(
        {
            "one pass": lambda: evaluate_cell(models, source, "fog", 3),
            "two passes": lambda: [evaluate_cell({n: m}, source, "fog", 3) for n, m in models.items()],
        },
        rounds,
    )
    ratio = found["two passes"] / found["one pass"]
    print(
        f"two passes / one pass for two small models {ratio:.2f}: {'holds' if ratio > SHARED_BAR else 'DOES NOT HOLD'}"
    )
    return ratio > SHARED_BAR, f"Two passes with a small model each took {ratio:.1f} times as long as one with both."


def generation_times(rounds: int) -> None:
    image = photograph(0)
    for name in ALL_CORRUPTIONS:
        corrupt_image(image, name, 3, key=0)  # makes what is kept: textures, kernels
    jobs: dict[str, Callable[[], object]] = {
        name: partial(corrupt_image, image, name, 3, key=0) for name in ALL_CORRUPTIONS
    }
    found = fastest(jobs, rounds)
    print("generation at severity 3, ms a 224 px image: " + ", ".join(f"{n} {1e3 * t:.1f}" for n, t in found.items()))


def bench_cells(quick: bool) -> tuple[bool, list[str]]:
    """Whether both bars hold, and their lines in docs/speed.md."""
    num_images, rounds = (16, 2) if quick else (64, 5)
    with tempfile.TemporaryDirectory() as folder:
        source = write_cell(Path(folder), num_images)
        bars = [loading_bar(source, num_images, rounds), shared_pass_bar(source, 3 * rounds)]
    return all(holds for holds, _ in bars), ["", *(line for _, line in bars)]


def main() -> int:
    """Both bars and the time of generating; 1 if a bar does not hold."""
    parser = argparse.ArgumentParser(description="The cost of a cell of ImageNet-C.")
    parser.add_argument("--quick", action="store_true", help="few images and rounds")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    holds, _ = bench_cells(quick)
    generation_times(2 if quick else 5)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
