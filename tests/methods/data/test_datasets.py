"""Datasets that come with a library are what that library gives."""

import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

from sts_methods.data.datasets import digits
from tests import processes


def test_digits_are_those_of_scikit_learn() -> None:
    theirs = load_digits()
    pixels = np.rint(theirs.data * (255 / 16)).astype(int)
    rows = {(*image, label) for image, label in zip(pixels.tolist(), theirs.target.tolist(), strict=True)}
    parts = [digits("train"), digits("test")]
    ours = [
        (*image[0].ravel().tolist(), int(label))
        for part in parts
        for image, label in zip(part.images, part.labels, strict=True)
    ]
    assert [len(part) for part in parts] == [1438, 359]
    assert set(ours) == rows
    assert all((part.images == part.images[:, :1]).all() for part in parts)
    assert parts[0].classes == tuple(str(name) for name in theirs.target_names)


@pytest.mark.slow
def test_digits_are_read_without_importing_scikit_learn() -> None:
    code = "import sys; from sts_methods.data.datasets import digits; digits('test'); print('sklearn' in sys.modules)"
    assert processes.run([sys.executable, "-c", code]).stdout == "False\n"
