"""Small real data and small networks for the evaluation tests."""

from collections.abc import Callable

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from sts_eval import Features


class DigitImages(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """The digits of scikit-learn as normalised images [1, 8, 8], every second one from `start`."""

    def __init__(self, start: int) -> None:
        digits = load_digits()
        self.images = (torch.tensor(digits.images[start::2], dtype=torch.float32)[:, None] - 4.9) / 6.0
        self.targets = torch.tensor(digits.target[start::2], dtype=torch.int64)
        self.classes = [str(i) for i in range(10)]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], int(self.targets[index])


@pytest.fixture(scope="session")
def digit_images() -> tuple[DigitImages, DigitImages]:
    """(training, test): half each, interleaved."""
    return DigitImages(0), DigitImages(1)


@pytest.fixture(scope="session")
def digit_features(digit_images: tuple[DigitImages, DigitImages]) -> tuple[Features, Features]:
    """Pixels of the training and the test digits as features [N, 64]."""
    train, test = (Features(d.images.flatten(1), d.targets, tuple(d.classes)) for d in digit_images)
    return train, test


@pytest.fixture
def small_network() -> Callable[[int], nn.Module]:
    """A convolution with batch norm, pooled to features [N, 32]; random weights by seed, in training mode."""

    def build(seed: int = 0) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.Sequential(
                nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
            )

    return build
