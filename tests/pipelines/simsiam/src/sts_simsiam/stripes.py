"""Drawn stripes, horizontal or vertical."""

import numpy as np
import torch

from sts_methods import DatasetRecord, ImageArrays, Split, register_dataset


def stripes(root: str | None, split: Split) -> ImageArrays:
    """Sixteen images of each class to train on, four to test."""
    rows = np.indices((16, 16))[0] // 2 % 2 * 255
    images = torch.from_numpy(np.stack([rows, rows.T] * (16 if split == "train" else 4)).astype(np.uint8))
    return ImageArrays(images[:, None].repeat(1, 3, 1, 1), np.arange(len(images)) % 2, ("horizontal", "vertical"))


register_dataset(DatasetRecord(name="stripes", about="drawn", open=stripes, needs_root=False, num_images=32))
