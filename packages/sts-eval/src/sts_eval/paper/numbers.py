"""Every number that the paper prints, keyed by table, row and column, exactly as it is printed.

    published("effect-of-sts", "BYOL STS", "top-1").value  ->  72.7

"Spatial Ensemble: a Novel Model Smoothing Mechanism for Student-Teacher Framework", Huang et al., NeurIPS 2021. The
six tables come first; numbers in running text and captions are the table "text", its rows the topics. Rows of other
methods are what the paper quotes for them. A "fail" has no value; a "-" is not a number and is left out.
"""

import difflib
from dataclasses import dataclass

from sts_core import ConfigError

Key = tuple[str, str, str]


@dataclass(frozen=True)
class PublishedNumber:
    """One printed number."""

    table: str
    row: str
    column: str
    printed: str
    """As in the paper, with its number of decimals."""

    @property
    def value(self) -> float | None:
        """The number, or None where the training failed to converge."""
        return None if self.printed == "fail" else float(self.printed)

    @property
    def decimals(self) -> int:
        """Digits behind the point: what the paper's rounding hides."""
        return len(self.printed.partition(".")[2])


@dataclass(frozen=True)
class PublishedTable:
    """A table's caption in short, its columns and its numbers as text, one line per row and a bar between columns."""

    title: str
    columns: tuple[str, ...]
    text: str

    def numbers(self, name: str) -> list[PublishedNumber]:
        """All that is a number (or "fail")."""
        found = []
        for line in self.text.strip().splitlines():
            row, *printed = (text.strip() for text in line.split("|"))
            assert len(printed) == len(self.columns), f"{name}: {line}"
            found += [
                PublishedNumber(name, row, c, text)
                for c, text in zip(self.columns, printed, strict=True)
                if text != "-"
            ]
        return found


TABLES = {
    "effect-of-se": PublishedTable(
        "Spatial Ensemble as model smoothing (ImageNet, 200 epochs, linear evaluation)",
        ("top-1", "top-5"),
        """
        MoCo none | fail | fail
        MoCo SE   | 66.7 | 87.0
        BYOL none | fail | fail
        BYOL SE   | 67.8 | 88.3
        """,
    ),
    "effect-of-sts": PublishedTable(
        "STS against TMA (ImageNet, 200 epochs, linear evaluation)",
        ("top-1", "top-5"),
        """
        MoCo TMA | 67.5 | 88.0
        MoCo STS | 67.8 | 88.1
        BYOL TMA | 71.8 | 90.6
        BYOL STS | 72.7 | 90.9
        """,
    ),
    "state-of-the-art": PublishedTable(
        "Self-supervised methods on ImageNet (ResNet-50, linear evaluation)",
        ("epochs", "top-1", "top-5"),
        """
        Jigsaw                | 90   | 45.7 | -
        InstDis               | 200  | 56.5 | -
        BigBiGAN              | -    | 56.5 | -
        Local Agg.            | -    | 60.2 | -
        CPC v2                | 200  | 63.8 | 85.3
        SimCLR 200            | 200  | 66.6 | -
        MoCo v2 200           | 200  | 67.5 | -
        PCL                   | 200  | 67.6 | -
        InfoMin Aug 200       | 200  | 70.1 | 89.4
        SwAV 400              | 400  | 70.7 | -
        SimSiam 400           | 400  | 70.8 | -
        BYOL 300              | 300  | 72.5 | 90.8
        Ours (BYOL + STS) 300 | 300  | 73.0 | 91.3
        PIRL                  | 800  | 63.6 | -
        SimCLR 1000           | 1000 | 69.3 | 89.0
        InfoMin Aug 800       | 800  | 73.0 | 91.1
        MoCo v2 800           | 800  | 71.1 | -
        SimSiam 800           | 800  | 71.3 | -
        SwAV 800              | 800  | 71.8 | -
        BYOL 1000             | 1000 | 74.3 | 91.6
        Ours (BYOL + STS) 1000 | 1000 | 74.5 | 91.8
        """,
    ),
    "granularity": PublishedTable(
        "SE and STS with layer-, channel- and neuron-wise units (BYOL, ImageNet, 200 epochs; time relative to TMA)",
        ("top-1", "time"),
        """
        TMA    | 71.8 | 1.0
        SE LW  | 67.8 | 0.97
        SE CW  | 70.8 | 1.02
        SE NW  | 71.6 | 1.80
        STS LW | 72.7 | 0.99
        STS CW | 72.8 | 1.04
        STS NW | 72.8 | 1.82
        """,
    ),
    "voc": PublishedTable(
        "Transfer to VOC07+12 detection (Faster R-CNN R50-C4, 24,000 iterations)",
        ("AP50", "AP", "AP75"),
        """
        supervised | 81.3 | 53.5 | 58.8
        SimCLR     | 81.8 | 55.5 | 58.8
        MoCo v2    | 82.3 | 57.0 | 63.3
        SwAV       | 81.5 | 55.4 | 61.4
        SimSiam    | 82.4 | 57.0 | 63.7
        BYOL       | 81.4 | 55.3 | 61.1
        Ours       | 82.3 | 57.2 | 64.4
        """,
    ),
    "few-labels": PublishedTable(
        "Semi-supervised methods on CIFAR-10 and CIFAR-100 by number of labels (top-1)",
        (
            *(f"CIFAR-10 {labels}" for labels in (20, 40, 250, 4000)),
            *(f"CIFAR-100 {labels}" for labels in (200, 400, 2500, 10000)),
        ),
        """
        Pi-Model        | -     | -     | 45.74 | 85.99 | -     | -     | 42.75 | 62.12
        Pseudo-Labeling | -     | -     | 50.22 | 83.91 | -     | -     | 42.62 | 63.79
        Mean Teacher    | -     | -     | 67.68 | 90.81 | -     | -     | 46.09 | 64.17
        MixMatch        | -     | 52.46 | 88.95 | 93.58 | -     | 32.39 | 60.06 | 71.69
        UDA             | -     | 70.95 | 81.18 | 95.12 | -     | 40.72 | 66.87 | 75.50
        ReMixMatch      | -     | 80.90 | 94.56 | 95.28 | -     | 55.72 | 72.57 | 76.97
        FixMatch        | 86.68 | 92.06 | 94.89 | 95.77 | 42.78 | 52.54 | 70.75 | 76.53
        FixMatch (STS)  | 93.31 | 93.89 | 95.10 | 95.94 | 45.85 | 55.25 | 72.22 | 77.92
        """,
    ),
}

TEXT = """
abstract       | gain of BYOL on ImageNet, about                    | 0.9
abstract       | gain of FixMatch on CIFAR-10 with few labels, about | 6
smoothing figure | first epoch                        | 1
smoothing figure | last epoch                         | 20
smoothing figure | momentum of TMA                    | 0.999
smoothing figure | preserve probability of SE         | 0.999
limits         | momentum that makes STS into SE      | 0
limits         | preserve probability said to make STS into TMA | 1
setup          | GPUs (RTX2080)                       | 8
setup          | preserve probability BYOL            | 0.7
setup          | preserve probability MoCo            | 0.5
setup          | preserve probability FixMatch        | 0.5
setup          | ResNet depth                         | 50
setup          | view height                          | 224
setup          | view width                           | 224
recipe MoCo    | version                              | 2
recipe MoCo    | memory bank                          | 65536
recipe MoCo    | learning rate                        | 0.03
recipe MoCo    | SGD momentum                         | 0.9
recipe MoCo    | weight decay                         | 0.0001
recipe MoCo    | batch size                           | 256
recipe BYOL    | batch size                           | 256
recipe BYOL    | learning rate                        | 0.1
recipe BYOL    | warm-up epochs                       | 10
recipe BYOL    | warm-up factor                       | 0.001
recipe BYOL    | SGD momentum                         | 0.9
recipe BYOL    | weight decay                         | 1e-4
recipe BYOL    | solarization probability             | 0.2
recipe FixMatch | network depth                       | 28
recipe FixMatch | network width CIFAR-10              | 2
recipe FixMatch | network width CIFAR-100             | 8
recipe FixMatch | SGD momentum                        | 0.9
recipe FixMatch | iterations, as a power of two       | 20
recipe FixMatch | labelled images per batch           | 64
recipe FixMatch | unlabelled images per batch         | 448
recipe FixMatch | unlabelled per labelled image       | 7
recipe FixMatch | learning rate                       | 0.03
recipe FixMatch | weight decay CIFAR-10               | 0.0005
recipe FixMatch | weight decay CIFAR-100              | 0.001
linear MoCo    | epochs                               | 100
linear MoCo    | learning rate                        | 30
linear MoCo    | first milestone                      | 60
linear MoCo    | second milestone                     | 80
linear MoCo    | factor                               | 0.1
linear BYOL    | learning rate                        | 0.2
linear BYOL    | epochs                               | 80
effect         | epochs                               | 200
effect         | MoCo SE top-1                        | 66.7
effect         | BYOL SE top-1                        | 67.8
effect         | MoCo TMA top-1                       | 67.5
effect         | BYOL TMA top-1                       | 71.8
effect         | MoCo STS top-1                       | 67.8
effect         | BYOL STS top-1                       | 72.7
ablation       | epochs                               | 200
ablation       | first momentum                       | 0
ablation       | second momentum                      | 0.9
ablation       | third momentum                       | 0.99
ablation       | fourth momentum                      | 0.999
ablation       | lowest preserve probability          | 0.1
ablation       | highest preserve probability         | 0.9
ablation       | interval of preserve probabilities   | 0.2
ablation       | preserve probability at which SE fails | 0
ablation       | preserve probability of TMA          | 0
ablation       | best preserve probability at momentum 0.9 | 0.99
ablation       | better preserve probability at momentum 0.99 | 0.7
ablation       | worse preserve probability at momentum 0.99 | 0.99
self-supervised | epochs, short                       | 300
self-supervised | epochs, long                        | 1000
self-supervised | top-1, short                        | 73.0
self-supervised | top-1, long                         | 74.5
self-supervised | batch size of STS                   | 256
self-supervised | batch size of BYOL                  | 4096
self-supervised | BYOL's loss from 4096 to 256, about | 0.6
ImageNet-C     | corruption types                     | 15
ImageNet-C     | intensities                          | 5
ImageNet-C     | combinations                         | 75
ImageNet-C     | mean gain over TMA, about            | 1.5
ImageNet-C     | smallest gain, about                 | 0.5
ImageNet-C     | largest gain, about                  | 5.6
ImageNet-C     | corruption types shown               | 4
detection      | epochs of pretraining                | 200
detection      | iterations                           | 24000
detection      | images per batch                     | 16
detection      | smallest training scale              | 480
detection      | largest training scale               | 800
detection      | test scale                           | 800
detection      | learning rate                        | 0.02
detection      | factor after the first drop          | 0.1
detection      | factor after the second drop         | 0.01
detection      | first drop                           | 18000
detection      | second drop                          | 22000
CIFAR-10       | labels per class, first              | 2
CIFAR-10       | labels per class, second             | 4
CIFAR-10       | labels per class, third              | 25
CIFAR-10       | labels per class, fourth             | 400
CIFAR-10       | gain with 20 labels                  | 6.63
CIFAR-10       | gain with 40 labels                  | 1.83
CIFAR-10       | gain with 250 labels                 | 0.21
CIFAR-10       | gain with 4000 labels                | 0.17
CIFAR-10       | upper bound with all labels          | 97.01
CIFAR-10       | training images                      | 50000
CIFAR-100      | labels per class, first              | 2
CIFAR-100      | labels per class, second             | 4
CIFAR-100      | labels per class, third              | 25
CIFAR-100      | labels per class, fourth             | 100
CIFAR-100      | gain with 200 labels                 | 3.07
CIFAR-100      | gain with 400 labels                 | 2.71
CIFAR-100      | gain with 2500 labels                | 1.47
CIFAR-100      | gain with 10000 labels               | 1.39
"""


def _all_numbers() -> dict[Key, PublishedNumber]:
    numbers = [number for name, table in TABLES.items() for number in table.numbers(name)]
    for line in TEXT.strip().splitlines():
        row, column, printed = (text.strip() for text in line.split("|"))
        numbers.append(PublishedNumber("text", row, column, printed))
    keyed = {(number.table, number.row, number.column): number for number in numbers}
    assert len(keyed) == len(numbers), "two numbers share a key"
    return keyed


PUBLISHED: dict[Key, PublishedNumber] = _all_numbers()
"""Every number that the paper prints, by table, row and column."""


def published(table: str, row: str, column: str) -> PublishedNumber:
    """The number in this place."""
    found = PUBLISHED.get((table, row, column))
    if found is None:
        near = difflib.get_close_matches(
            f"{table} / {row} / {column}", [" / ".join(key) for key in PUBLISHED], n=1, cutoff=0
        )
        raise ConfigError(f"the paper has no number {table} / {row} / {column}: did you mean {near[0]}")
    return found


def published_rows(table: str) -> dict[str, dict[str, PublishedNumber]]:
    """A table as rows of numbers by column, in the paper's order."""
    rows: dict[str, dict[str, PublishedNumber]] = {}
    for (name, row, column), number in PUBLISHED.items():
        if name == table:
            rows.setdefault(row, {})[column] = number
    if not rows:
        raise ConfigError(f"the paper's tables are {', '.join([*TABLES, 'text'])}, got {table!r}")
    return rows
