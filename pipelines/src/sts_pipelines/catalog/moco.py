"""MoCo v2: the paper's rows on ImageNet, and the same family on small images."""

from sts_pipelines.catalog.families import EIGHT_GPUS, imagenet_rows, in_small

# (m, p): m = .999 is MoCo v2's, p = .5 the paper's; for SE see `note_on_se`.
IMAGENET = {"none": (0.0, 0.0), "se": (0.0, 0.999), "tma": (0.999, 0.0), "sts": (0.999, 0.5)}
# A key of the short queue is a few steps old, so the teacher may forget faster.
SMALL = {"none": (0.0, 0.0), "se": (0.0, 0.97), "tma": (0.97, 0.0), "sts": (0.97, 0.5)}
ABOUT = """Time: 53 hours on 8 V100 (MoCo's README);
    {time}.
    Expect {expected}.
    Five runs of MoCo itself spread by .16 (sample deviation), so one run decides nothing."""

imagenet_rows("moco", "MoCo v2", IMAGENET, hardware=EIGHT_GPUS, about=ABOUT)
in_small("moco", "MoCo", SMALL, hours={"digits": "0.02", "cifar10": "0.2"})
