"""The input pipelines of the reference implementations, written with Pillow and torchvision's first transforms."""

import random

from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor
from torchvision import transforms

IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
CIFAR10 = {"mean": [0.4914, 0.4822, 0.4465], "std": [0.2471, 0.2435, 0.2616]}


class RandomBlur:
    """MoCo, moco/loader.py: Pillow's blur with a radius from U(.1, 2)."""

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))


def moco_transform(size: int) -> transforms.Compose:
    """MoCo v2, main_moco.py with --aug-plus."""
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(size, scale=(0.2, 1.0)),
            transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            transforms.RandomGrayscale(p=0.2),
            transforms.RandomApply([RandomBlur()], p=0.5),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(**IMAGENET),
        ]
    )


class RandAugment:
    """kekmodel/FixMatch-pytorch, dataset/randaugment.py: two of 14 operations, each with probability ½, then Cutout."""

    def __call__(self, image: Image.Image) -> Image.Image:
        for operation in random.choices(OPERATIONS, k=2):
            level = random.randint(1, 9)
            if random.random() < 0.5:
                image = operation(image, level / 10)
        return self.cutout(image, int(image.size[0] * 0.5))

    @staticmethod
    def cutout(image: Image.Image, side: int) -> Image.Image:
        x0, y0 = (int(max(0, random.uniform(0, length) - side / 2)) for length in image.size)
        image = image.copy()
        ImageDraw.Draw(image).rectangle((x0, y0, x0 + side, y0 + side), (127, 127, 127))
        return image


def _signed(value: float) -> float:
    return value if random.random() < 0.5 else -value


def _affine(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix)


OPERATIONS = (
    lambda image, share: ImageOps.autocontrast(image),
    lambda image, share: ImageEnhance.Brightness(image).enhance(0.05 + 0.9 * share),
    lambda image, share: ImageEnhance.Color(image).enhance(0.05 + 0.9 * share),
    lambda image, share: ImageEnhance.Contrast(image).enhance(0.05 + 0.9 * share),
    lambda image, share: ImageOps.equalize(image),
    lambda image, share: image,
    lambda image, share: ImageOps.posterize(image, int(4 * share) + 4),
    lambda image, share: image.rotate(_signed(int(30 * share))),
    lambda image, share: ImageEnhance.Sharpness(image).enhance(0.05 + 0.9 * share),
    lambda image, share: _affine(image, 1, _signed(0.3 * share), 0, 0, 1, 0),
    lambda image, share: _affine(image, 1, 0, 0, _signed(0.3 * share), 1, 0),
    lambda image, share: ImageOps.solarize(image, 256 - int(256 * share)),
    lambda image, share: _affine(image, 1, 0, int(_signed(0.3 * share) * image.size[0]), 0, 1, 0),
    lambda image, share: _affine(image, 1, 0, 0, 0, 1, int(_signed(0.3 * share) * image.size[1])),
)


class FixMatchTransform:
    """kekmodel/FixMatch-pytorch, dataset/cifar.py: a weak and a strong view of a CIFAR image."""

    def __init__(self) -> None:
        shift = transforms.RandomCrop(32, padding=4, padding_mode="reflect")
        self.weak = transforms.Compose([transforms.RandomHorizontalFlip(), shift])
        self.strong = transforms.Compose([transforms.RandomHorizontalFlip(), shift, RandAugment()])
        self.normalise = transforms.Compose([transforms.ToTensor(), transforms.Normalize(**CIFAR10)])

    def __call__(self, image: Image.Image) -> tuple[Tensor, Tensor]:
        return self.normalise(self.weak(image)), self.normalise(self.strong(image))
