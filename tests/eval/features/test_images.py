import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torchvision import transforms

from sts_core.errors import ConfigError
from sts_eval import Backbone, CentreCrop, CleanFolder, DataError, extract_features, image_folder
from sts_eval.features import images
from sts_eval.features.backbone_source import timm_preprocessing
from sts_eval.features.images import (
    CROP_RATIO,
    CROP_SCALE,
    AugmentedSamples,
    centre_crop,
    normalised,
    random_crop_box,
)


def photograph(width, height, seed=0):
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("size", [(320, 240), (240, 321), (256, 256), (100, 60)])
def test_the_centre_crop_equals_torchvisions(size):
    image = photograph(*size)
    reference = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    assert torch.allclose(CentreCrop(224)(image), reference(image), atol=1e-5)


@pytest.mark.slow
def test_crops_equal_torchvisions_to_the_pixel_for_every_size():
    reference = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224)])
    sizes = [(294, 196), (196, 294), *((w, h) for w in range(180, 340, 13) for h in range(181, 340, 9))]
    other = []
    for size in sizes:
        image = photograph(*size)
        if np.asarray(centre_crop(image, 224, resize=256)).tobytes() != np.asarray(reference(image)).tobytes():
            other.append(size)
    assert other == []


def test_images_are_found_by_their_ending_at_any_depth_and_hidden_folders_are_no_classes(tmp_path):
    names = ["a/1.png", "a/deep/er/2.GIF", "b/3.jpe", "b/notes.txt", ".cache/4.png"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("txt"):
            (tmp_path / name).write_text("no image")
        else:
            kind = {".jpe": "JPEG", ".GIF": "GIF"}.get((tmp_path / name).suffix, "PNG")
            photograph(60, 50).save(tmp_path / name, format=kind)
    folder = image_folder(tmp_path, image_size=32)
    assert folder.classes == ["a", "b"]
    assert folder.targets == [0, 0, 1]
    assert folder[2][0].shape == (3, 32, 32)
    clean = CleanFolder(tmp_path, image_size=32)
    assert clean.names == ("a/1", "a/deep/er/2", "b/3")
    assert clean.classes == ("a", "b")


def test_the_image_files_of_evaluation_are_those_of_training():
    from sts_methods.data import image_folders

    assert images.IMAGE_SUFFIXES == image_folders.IMAGE_SUFFIXES


def test_clean_images_are_cropped_as_the_release_crops_them(tmp_path):
    photograph(294, 196).save(tmp_path / "odd.png")
    (tmp_path / "class").mkdir()
    (tmp_path / "odd.png").rename(tmp_path / "class" / "odd.png")
    reference = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224)])
    assert np.array_equal(CleanFolder(tmp_path).image(0), np.asarray(reference(photograph(294, 196))))


def test_a_crop_larger_than_the_image_is_refused():
    with pytest.raises(ConfigError, match="at least image_size=224"):
        CentreCrop(224, resize=200)


def test_crops_have_the_areas_and_ratios_of_the_recipe_and_stay_inside():
    draws = np.random.Generator(np.random.Philox(key=0))
    boxes = np.array([random_crop_box(300, 400, draws) for _ in range(3000)])
    top, left, height, width = boxes.T
    assert ((top >= 0) & (left >= 0) & (top + height <= 300) & (left + width <= 400)).all()
    area, ratio = height * width / 120_000, width / height
    assert area.min() > CROP_SCALE[0] * 0.95
    assert CROP_RATIO[0] * 0.97 < ratio.min() < ratio.max() < CROP_RATIO[1] * 1.03
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        image = photograph(400, 300)
        reference = [transforms.RandomResizedCrop.get_params(image, CROP_SCALE, CROP_RATIO) for _ in range(1000)]
    expected = np.mean([h * w for _, _, h, w in reference]) / 120_000
    assert abs(area.mean() - expected) < 0.04  # other draws, one distribution


def test_an_image_too_narrow_for_any_crop_gives_its_centre():
    draws = np.random.Generator(np.random.Philox(key=0))
    top, left, height, width = random_crop_box(1, 200, draws)
    assert (top, height) == (0, 1)
    assert 0 <= left <= left + width <= 200


def test_a_view_is_a_function_of_seed_epoch_and_index_alone():
    dataset = [(photograph(60, 50, seed=i), i) for i in range(4)]

    def view(seed, epoch, index):
        return AugmentedSamples(dataset, test_view=CentreCrop(32), seed=seed, epoch=epoch)[index][0]

    assert torch.equal(view(1, 2, 3), view(1, 2, 3))
    others = [view(0, 2, 3), view(1, 3, 3), view(1, 2, 2)]
    assert all(not torch.equal(view(1, 2, 3), other) for other in others)
    assert view(1, 2, 3).shape == (3, 32, 32)


def test_half_of_the_views_are_flipped():
    ramp = Image.fromarray(np.tile(np.arange(0, 250, 5, dtype=np.uint8), (50, 1))).convert("RGB")
    samples = AugmentedSamples([(ramp, 0)] * 400, test_view=CentreCrop(16), seed=0, epoch=0)
    falling = sum(bool(samples[i][0][0, 8, 0] > samples[i][0][0, 8, -1]) for i in range(400))
    assert 160 < falling < 240


def test_tensors_and_images_are_cropped_alike():
    image = photograph(64, 64)
    from_image = AugmentedSamples([(image, 0)], test_view=CentreCrop(48), seed=5, epoch=1)[0][0]
    from_tensor = AugmentedSamples([(normalised(image), 0)], test_view=CentreCrop(48), seed=5, epoch=1)[0][0]
    assert (from_image - from_tensor).abs().max() < 0.06  # one grey level is 0.017, and the image is rounded twice


def test_an_image_of_sixteen_bits_is_refused_and_not_clipped_to_white():
    deep = Image.fromarray(np.full((8, 8), 40_000, dtype=np.uint16))
    with pytest.raises(DataError, match="8 bits per channel, got mode 'I;16': convert it"):
        CentreCrop(8)(deep)


def test_a_folder_names_its_image_of_sixteen_bits_whoever_reads_it(tmp_path):
    (tmp_path / "stars").mkdir()
    Image.fromarray(np.full((40, 40), 40_000, dtype=np.uint16)).save(tmp_path / "stars" / "deep.png")
    of_path = r"stars/deep.png is not \(an image must have 8 bits per channel"
    with pytest.raises(DataError, match=of_path):
        image_folder(tmp_path, image_size=32)[0]
    with pytest.raises(DataError, match=of_path) as caught:
        extract_features(torch.nn.Flatten(), image_folder(tmp_path, image_size=32))
    assert str(caught.value).count("must be readable") == 1
    with pytest.raises(DataError, match=of_path):
        CleanFolder(tmp_path, image_size=32).image(0)


def test_a_timm_network_brings_its_own_preprocessing_and_any_of_it_can_be_given():
    module = timm.create_model("vit_tiny_patch16_224", num_classes=0)
    source = Backbone(module, preprocessing=timm_preprocessing(module))
    view = source.transform()
    assert (view.image_size, view.resize, view.interpolation) == (224, 248, "bicubic")
    assert (view.mean, view.std) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    image = photograph(300, 280)
    expected = timm.data.create_transform(**timm.data.resolve_model_data_config(module))(image)
    assert torch.allclose(view(image), expected, atol=1e-5)
    given = source.transform(image_size=96, resize=96, mean=(0.4, 0.4, 0.4))
    assert (given.image_size, given.resize, given.mean, given.interpolation) == (96, 96, (0.4,) * 3, "bicubic")
    assert Backbone(module).transform().mean == CentreCrop().mean


def test_the_augmented_crops_have_the_statistics_of_the_tests_view():
    image = Image.fromarray(np.full((20, 20, 3), 255, dtype=np.uint8))
    view = CentreCrop(16, mean=(0.0, 0.0, 0.0), std=(0.5, 0.5, 0.5), interpolation="bicubic")
    crop = AugmentedSamples([(image, 0)], test_view=view, seed=0, epoch=0)[0][0]
    assert torch.allclose(crop, torch.full((3, 16, 16), 2.0))
