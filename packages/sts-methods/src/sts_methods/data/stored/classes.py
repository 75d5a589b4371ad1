"""From what files say of the class of each image to numbers."""

from collections.abc import Sequence

import numpy as np

from sts_core import ConfigError
from sts_methods.draws import IntArray


def numbered(texts: Sequence[str], known: Sequence[str], place: str) -> tuple[IntArray, tuple[str, ...]]:
    """The class of each image and the names of all: `known` are those of the training set.

    Numbers stay what they are, and names are numbered in alphabetical order.
    """
    if all(text.isdecimal() for text in known):
        names = tuple(str(number) for number in range(max(map(int, known)) + 1))
        texts = [str(int(text)) if text.isdecimal() else text for text in texts]
    else:
        names = tuple(sorted(set(known)))
    numbers = {name: number for number, name in enumerate(names)}
    if unknown := sorted(set(texts) - set(names)):
        raise ConfigError(
            f"the classes of {place} must be those of the training set, which has no "
            f"{', '.join(map(repr, unknown[:3]))}: correct the labels, or set label_column"
        )
    return np.array([numbers[text] for text in texts], dtype=np.int64), names
