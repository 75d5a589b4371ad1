"""How fast sts-eval measures, against scikit-learn and lightly on the same features in one run.

    ci/bench eval              a few minutes on one core, then the numbers are written into docs/speed.md
    ci/bench eval --dry        print them and leave the page alone; so do --quick, a look, and --only, one section

1. Feature extraction: decoding against the forward pass, without and with a loader process.
2. A cell of ImageNet-C: the same, and one pass for two models (corruptions.py has more about cells).
3. k-NN: the same vote by scikit-learn and by lightly.
4. Probes: a grid of learning rates as parallel heads against lightly's classifier trained once per rate; the grid of
   regularisations by L-BFGS and by ridge against scikit-learn's solvers.

Times of 3 and 4 are CPU time, the minimum of interleaved rounds, one thread each; only ratios within one run mean
anything, and two that differ by less than 5 % are called level. The last line of each section says whether its bar
holds; the exit code is 1 if one does not.
"""

import argparse
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from corruptions import bench_cells
from PIL import Image

from sts_eval import (
    FeatureConfig,
    Features,
    LinearProbeConfig,
    NeighboursConfig,
    extract_features,
    fast_protocol,
    image_folder,
    linear_probe,
    nearest_neighbours,
)
from sts_eval.features.backbone_source import timm_backbone

NOISE = 1.05
"""Ratios nearer to 1 come out on either side of it from run to run."""
Job = Callable[[], float]
"""Does the work and returns the accuracy in percent."""
Section = tuple[bool, list[str]]
"""Whether its bar holds, and its lines in docs/speed.md."""
PAGE = Path(__file__).parents[1] / "docs/speed.md"
TABLE = ["| | against | times ours | top-1, ours and theirs |", "|---|---|---:|---:|"]


def interleaved(jobs: dict[str, Job], rounds: int) -> dict[str, tuple[float, float]]:
    """CPU seconds (minimum over rounds) and accuracy of each job; rounds are interleaved, so noise hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    accuracies = {}
    for _ in range(rounds):
        for name, job in jobs.items():
            start = time.process_time()
            accuracies[name] = job()
            seconds[name].append(time.process_time() - start)
    return {name: (min(seconds[name]), accuracies[name]) for name in jobs}


def show(title: str, measured: dict[str, tuple[float, float]], ours: str) -> list[str]:
    """Print what was measured; returns the rows of the page's table."""
    print(f"\n{title}")
    rows = []
    for name, (seconds, accuracy) in measured.items():
        ratio = seconds / measured[ours][0]
        level = name != ours and 1 / NOISE < ratio < NOISE
        print(f"  {name:<44} {seconds:8.3f} s   {ratio:6.2f} x ours   top-1 {accuracy:6.2f}{'   level' * level}")
        if name != ours:
            tops = f"{measured[ours][1]:.2f} and {accuracy:.2f}"
            rows.append(f"| {title} | {name} | {ratio:.2f}{' (level)' * level} | {tops} |")
    return rows


def verdict(title: str, measured: dict[str, tuple[float, float]], ours: str, tolerance: float) -> bool:
    """Ours is not slower than any other, noise aside, and as accurate within `tolerance` points."""
    mine = measured[ours]
    slower = [name for name, (seconds, _) in measured.items() if NOISE * seconds < mine[0]]
    differ = [name for name, (_, accuracy) in measured.items() if abs(accuracy - mine[1]) > tolerance]
    complaints = ([f"slower than {', '.join(slower)}"] if slower else []) + (
        [f"accuracy differs from {', '.join(differ)}"] if differ else []
    )
    print(f"  {title}: {'holds' if not complaints else '; '.join(complaints)}")
    return not complaints


def clustered(count: int, width: int, classes: int, seed: int) -> Features:
    """Features like those of a network: classes as noisy directions, non-negative, of uneven scale."""
    draws = np.random.Generator(np.random.Philox(key=seed))
    centres = np.random.Generator(np.random.Philox(key=7)).normal(size=(classes, width))
    labels = draws.integers(classes, size=count)
    scale = np.exp(np.random.Generator(np.random.Philox(key=8)).normal(0, 0.5, width))
    values = np.maximum((centres[labels] + draws.normal(0, 3.2, (count, width))) * scale, 0.0)
    return Features(torch.tensor(values, dtype=torch.float32), torch.tensor(labels))


def write_photographs(root: Path, count: int) -> Path:
    """JPEGs of 500x375 at quality 95 with the spectrum of photographs (1/f), which is what decoding time depends on."""
    frequency = np.hypot(np.fft.fftfreq(375)[:, None], np.fft.rfftfreq(500)[None]) + 1.0 / 500
    for i in range(count):
        draws = np.random.Generator(np.random.Philox(key=i))
        planes = [np.fft.irfft2(np.fft.rfft2(draws.normal(size=(375, 500))) / frequency, (375, 500)) for _ in range(3)]
        pixels = np.stack([np.clip(128 + 45 * p / p.std(), 0, 255) for p in planes], -1).astype(np.uint8)
        folder = root / f"class{i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{i}.jpg", quality=95)
    return root


def bench_extraction(quick: bool) -> Section:
    """The share of time that extraction waits for images."""
    name, count = ("resnet18", 32) if quick else ("resnet50", 96)
    backbone = timm_backbone(name).eval()
    with tempfile.TemporaryDirectory() as folder:
        dataset = image_folder(write_photographs(Path(folder), count))
        start = time.perf_counter()
        for index in range(count):
            dataset[index]
        decoding = (time.perf_counter() - start) / count
        print(f"\nfeature extraction, {name} at 224 px, {count} JPEGs of 500x375; ms per image")
        print(f"  {'decode, resize, crop, normalise alone':<44} {1e3 * decoding:8.1f}")
        shares = {}
        for workers in (0, 1):
            config = FeatureConfig(batch_size=8, num_workers=workers, channels_last=True)
            found = extract_features(backbone, dataset, config)
            waiting, forward = 1e3 * found.seconds_loading / count, 1e3 * found.seconds_forward / count
            shares[workers] = waiting / (waiting + forward)
            label = f"{workers} loader processes: waiting | forward"
            print(f"  {label:<44} {waiting:8.1f} | {forward:.1f}   ({100 * shares[workers]:.0f} % waiting)")
    holds = min(shares.values()) < 0.25
    print(f"  bound by the forward pass (waiting < 25 %): {'holds' if holds else 'does not hold'}")
    line = (
        f"Extracting features of {name} at 224 px from 500x375 JPEGs spent {shares[0]:.0%} of the time waiting for "
        f"images without a loader process and {shares[1]:.0%} with one."
    )
    return holds, ["", line]


def bench_neighbours(quick: bool, rounds: int) -> Section:
    """One vote, k 200 and T 0.1, by all three."""
    from lightly.utils.benchmarking import knn_predict
    from sklearn.neighbors import KNeighborsClassifier

    count = 4_000 if quick else 20_000
    train, test = clustered(count, 512, 100, 1), clustered(count // 10, 512, 100, 2)
    config = NeighboursConfig(ks=(200,), temperatures=(0.1,), allow_missing_classes=True)

    def ours() -> float:
        return nearest_neighbours(train, test, config).top1(200, 0.1)

    def lightly() -> float:
        bank = torch.nn.functional.normalize(train.values, dim=1).T.contiguous()
        queries = torch.nn.functional.normalize(test.values, dim=1)
        right = sum(
            int((knn_predict(q, bank, train.labels, 100, 200, 0.1)[:, 0] == y).sum())
            for q, y in zip(queries.split(256), test.labels.split(256), strict=True)
        )
        return 100.0 * right / len(test)

    def scikit() -> float:
        model = KNeighborsClassifier(200, metric="cosine", algorithm="brute", weights=lambda d: np.exp(-d / 0.1))
        model.fit(train.values.numpy(), train.labels.numpy())
        return 100.0 * float(model.score(test.values.numpy(), test.labels.numpy()))

    measured = interleaved({"ours": ours, "lightly knn_predict": lightly, "scikit-learn": scikit}, rounds)
    rows = show(f"k-NN, {len(test):,} queries in a bank of {count:,} x 512, 100 classes, k 200", measured, "ours")
    return verdict("same accuracy, not slower", measured, "ours", 0.1), rows


def _lightly_grid(train: Features, test: Features, rates: tuple[float, ...], epochs: int) -> float:
    """lightly's linear classifier under its own trainer, once per learning rate; the best of them."""
    import logging

    import pytorch_lightning as pl
    from lightly.utils.benchmarking import LinearClassifier
    from torch.utils.data import DataLoader, TensorDataset

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "accelerator": "cpu", "limit_val_batches": 0}
    best = 0.0
    for rate in rates:
        torch.manual_seed(0)
        model = LinearClassifier(torch.nn.Identity(), 256, rate, train.values.shape[1], 100)
        torch.nn.init.normal_(model.classification_head.weight, std=0.01)  # as ours: MoCo's
        torch.nn.init.zeros_(model.classification_head.bias)
        data = DataLoader(TensorDataset(train.values, train.labels), 256, shuffle=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pl.Trainer(max_epochs=epochs, **quiet).fit(model, data)
        with torch.no_grad():
            right = model.classification_head(test.values).argmax(1) == test.labels
        best = max(best, 100.0 * float(right.double().mean()))
    return best


def bench_sgd_probes(quick: bool) -> Section:
    """A grid of learning rates."""
    count, epochs = (4_000, 3) if quick else (20_000, 10)
    train, test = clustered(count, 512, 100, 1), clustered(4_000, 512, 100, 2)
    rates = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    config = LinearProbeConfig(
        learning_rates=rates, epochs=epochs, schedule="cosine", evaluate_every_epochs=epochs, allow_missing_classes=True
    )
    ours = "ours, parallel heads"
    jobs: dict[str, Job] = {
        ours: lambda: linear_probe(train, test, config).last[1],
        "lightly LinearClassifier": lambda: _lightly_grid(train, test, rates, epochs),
    }
    measured = interleaved(jobs, 1)
    rows = show(f"probe by SGD, {len(rates)} learning rates, {epochs} epochs of {count:,} x 512", measured, ours)
    return verdict("same accuracy, not slower", measured, ours, 1.0), rows


def bench_exact_probes(quick: bool, rounds: int) -> Section:
    """A grid of regularisations by each solver."""
    from sklearn.linear_model import LogisticRegression, RidgeClassifier
    from sklearn.preprocessing import StandardScaler

    count, strengths = 4_000 if quick else 20_000, (1e-3, 1e-2, 1e-1)
    train, test = clustered(count, 512, 100, 1), clustered(4_000, 512, 100, 2)
    x, y = train.values.numpy(), train.labels.numpy()

    def logistic() -> float:
        scaler = StandardScaler().fit(x)
        scaled, asked = scaler.transform(x), scaler.transform(test.values.numpy())
        models = [LogisticRegression(C=1 / (s * count), max_iter=300).fit(scaled, y) for s in strengths]
        return 100.0 * max(float(model.score(asked, test.labels.numpy())) for model in models)

    def ridge() -> float:
        models = [RidgeClassifier(alpha=s * count).fit(x, y) for s in strengths]
        return 100.0 * max(float(model.score(test.values.numpy(), test.labels.numpy())) for model in models)

    def exactly(solver: str) -> Job:
        protocol = fast_protocol(solver=solver, regularisations=strengths, allow_missing_classes=True)
        return lambda: linear_probe(train, test, protocol).last[1]

    holds, rows = True, []
    for solver, name, job in (("lbfgs", "LogisticRegression", logistic), ("ridge", "RidgeClassifier", ridge)):
        ours = f"ours, {solver}"
        measured = interleaved({ours: exactly(solver), f"scikit-learn {name}": job}, rounds)
        rows += show(f"probe by {solver}, {len(strengths)} regularisations, {count:,} x 512", measured, ours)
        holds &= verdict("same accuracy, not slower", measured, ours, 0.5)
    return holds, rows


def write_lines(lines: list[str]) -> None:
    """Replace what is between the markers of docs/speed.md."""
    pattern = re.compile(r"(<!-- bench:eval -->\n).*?(<!-- /bench:eval -->)", re.DOTALL)
    text, count = pattern.subn(lambda match: f"{match[1]}{chr(10).join(lines)}\n{match[2]}", PAGE.read_text())
    if count != 1:
        raise SystemExit(f"{PAGE} must have one pair of bench:eval markers, found {count}")
    PAGE.write_text(text)


def main(arguments: list[str] | None = None) -> int:
    """Run the sections asked for and, if these are all, write the page; 1 if a bar does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, says little about speed")
    parser.add_argument("--only", choices=("extraction", "cells", "knn", "probes"), help="one section")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved repetitions")
    parser.add_argument("--dry", action="store_true", help="print the numbers and leave the page alone")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    sections: list[tuple[str, Callable[[], Section]]] = [
        ("probes", lambda: bench_sgd_probes(options.quick)),
        ("knn", lambda: bench_neighbours(options.quick, options.rounds)),
        ("probes", lambda: bench_exact_probes(options.quick, options.rounds)),
        ("extraction", lambda: bench_extraction(options.quick)),
        ("cells", lambda: bench_cells(options.quick)),
    ]
    results = [section() for name, section in sections if options.only in (None, name)]
    lines = [*TABLE, *(line for _, section in results for line in section)]
    print("\n" + "\n".join(lines))
    if not (options.dry or options.quick or options.only):
        write_lines(lines)
    return 0 if all(holds for holds, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
