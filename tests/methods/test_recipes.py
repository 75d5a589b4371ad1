"""The numbers of the references, which nobody may change in passing: views, networks and what is decayed."""

from dataclasses import replace

import pytest
from torch import nn

from sts_core.errors import ConfigError
from sts_methods import (
    Byol,
    ByolConfig,
    DataConfig,
    DinoConfig,
    FixMatch,
    FixMatchConfig,
    MeanTeacherConfig,
    MoCoConfig,
    TrainingConfig,
    multi_crop,
    recipes,
    two_views,
)
from sts_methods.networks.wide_resnet import WideResNet
from sts_methods.training.optimizers import OptimizerConfig, parameter_groups
from sts_methods.views.specs import CropView, local_size, weak_and_strong


def test_mocos_views_are_equal_and_those_of_aug_plus() -> None:
    one, two = two_views(views="moco")
    assert two_views(recipe="byol") == two_views(views="byol")  # its former name
    assert one == two
    assert one == CropView(
        size=224, crop_scale=(0.2, 1.0), crop_ratio=(3 / 4, 4 / 3), interpolation="bilinear", flip=0.5, jitter=0.8,
        brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, grayscale=0.2, blur=0.5, blur_sigma=(0.1, 2.0),
        solarise=0.0,
    )  # fmt: skip


def test_only_byols_second_view_is_solarised_and_it_is_seldom_blurred() -> None:
    one, two = DataConfig(dataset="images", root="photos", image_size=224, views="byol").make_views()
    assert isinstance(one, CropView)
    assert isinstance(two, CropView)
    assert (one.solarise, two.solarise) == (0.0, 0.2)
    assert (one.blur, two.blur) == (1.0, 0.1)
    for view in (one, two):
        assert view.crop_scale == (0.08, 1.0)
        assert (view.brightness, view.contrast, view.saturation, view.hue) == (0.4, 0.4, 0.2, 0.1)
        assert (view.flip, view.jitter, view.grayscale) == (0.5, 0.8, 0.2)


def test_dino_has_eight_local_crops_of_96_pixels() -> None:
    assert [view.size for view in multi_crop()] == [224, 224, *[96] * 8]


def test_local_crops_are_whole_patches_of_16_pixels_unless_the_image_is_tiny() -> None:
    sizes = {8: 8, 12: 8, 32: 16, 48: 24, 64: 32, 96: 48, 128: 48, 160: 64, 192: 80, 224: 96, 256: 112, 384: 160}
    assert {size: local_size(size) for size in sizes} == sizes


@pytest.mark.parametrize("recipe", ["byol", "moco", "dino"])
def test_a_filter_of_ones_own_resizes_all_crops(recipe: str) -> None:
    own = DataConfig(dataset="images", root="photos", image_size=224, views=recipe)
    asked = replace(own, interpolation="bilinear" if recipe == "dino" else "bicubic")
    assert {view.interpolation for view in own.make_views()} == {"bicubic" if recipe == "dino" else "bilinear"}  # type: ignore[union-attr]
    assert {view.interpolation for view in asked.make_views()} == {asked.interpolation}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("recipe", "interpolation", "message"),
    [("byol", "nearest", "must be bilinear, bicubic or None"), ("fixmatch", "bicubic", "fixmatch shifts whole images")],
)
def test_a_filter_that_nothing_could_use_is_refused(recipe: str, interpolation: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DataConfig(views=recipe, interpolation=interpolation)  # type: ignore[arg-type]


def test_fixmatch_shifts_by_four_pixels_and_cuts_out_sixteen_after_two_operations() -> None:
    weak, strong = weak_and_strong()
    assert weak.padding * weak.size == strong.padding * strong.size == 4
    assert strong.cutout * strong.size == 16
    assert (strong.num_ops, strong.op_probability) == (2, 0.5)


def test_the_methods_defaults_are_the_references() -> None:
    moco = MoCoConfig()
    assert (moco.dim, moco.queue_size, moco.temperature, moco.bn_groups, moco.shuffle) == (128, 65_536, 0.2, 8, True)
    assert (ByolConfig().hidden_dim, ByolConfig().projection_dim) == (4096, 256)
    fixmatch = FixMatchConfig(num_classes=10)
    assert (fixmatch.threshold, fixmatch.unlabelled_weight, fixmatch.pseudo_labels) == (0.95, 1.0, "student")
    assert DataConfig().unlabelled_ratio == 7


def test_fixmatchs_student_keeps_slow_batch_norms_and_decays_its_kernels_only() -> None:
    student = FixMatch(FixMatchConfig(num_classes=10), seed=0).student
    norms = [module for module in student.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert len(norms) == 25
    assert all(norm.momentum == 0.001 for norm in norms)
    decayed, exempt = parameter_groups(student, OptimizerConfig(exclude_norm_and_bias=True))
    assert {parameter.dim() for parameter in decayed["params"]} == {2, 4}
    assert {parameter.dim() for parameter in exempt["params"]} == {1}


def test_recipes_come_in_the_variants_of_their_sources() -> None:
    code, paper, deepmind = (recipes.byol_imagenet(v, epochs=300) for v in ("code", "paper", "deepmind"))  # type: ignore[arg-type]
    assert [r.optimizer.lr for r in (code, paper, deepmind)] == [0.05, 0.1, 0.3]
    assert [r.optimizer.name for r in (code, paper, deepmind)] == ["sgd", "sgd", "lars"]
    assert [r.optimizer.warmup_start for r in (code, paper)] == [2e-5, 1e-3]
    assert recipes.moco_imagenet().data.views == "moco"
    assert recipes.fixmatch_cifar("cifar100", labels=400).method.num_classes == 100  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("epochs", "lr", "m", "decay"),
    [(40, 0.45, 0.97, 1e-6), (100, 0.45, 0.99, 1e-6), (300, 0.3, 0.99, 1e-6), (1000, 0.2, 0.996, 1.5e-6)],
)
def test_deepminds_numbers_belong_to_the_length_of_the_training(epochs: int, lr: float, m: float, decay: float) -> None:
    recipe = recipes.byol_imagenet("deepmind", epochs=epochs)
    assert (recipe.optimizer.lr, recipe.smoothing.momentum, recipe.optimizer.weight_decay) == (lr, m, decay)
    assert recipes.byol_imagenet("deepmind", epochs=epochs, m=0.5).smoothing.momentum == 0.5
    assert recipes.byol_imagenet("code", epochs=epochs).smoothing.momentum == 0.99


def test_only_the_papers_own_recipes_preserve_units_unless_asked_to() -> None:
    authors = (recipes.byol_imagenet("deepmind"), recipes.moco_imagenet(), recipes.fixmatch_cifar())
    assert [recipe.smoothing.preserve_probability for recipe in authors] == [0.0, 0.0, 0.0]
    assert authors[0].epochs == 1000
    papers = (recipes.byol_imagenet("code"), recipes.byol_imagenet("paper"))
    assert [(recipe.smoothing.preserve_probability, recipe.epochs) for recipe in papers] == [(0.7, 200)] * 2
    asked = recipes.byol_imagenet("deepmind", epochs=300, p=0.7)
    assert (asked.smoothing.preserve_probability, asked.epochs) == (0.7, 300)


def test_a_recipe_that_nobody_has_published_is_refused() -> None:
    with pytest.raises(ConfigError, match="code, paper or deepmind"):
        recipes.byol_imagenet("google")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="for 40, 100, 300, 1000 epochs, got 200"):
        recipes.byol_imagenet("deepmind", epochs=200)


def test_dino_has_its_readme_s_numbers_for_both_networks() -> None:
    vit, resnet = recipes.dino_imagenet(), recipes.dino_imagenet("resnet50")
    assert [(r.optimizer.name, r.optimizer.lr) for r in (vit, resnet)] == [("adamw", 5e-4), ("sgd", 0.03)]
    assert [(r.optimizer.weight_decay, r.optimizer.final_weight_decay) for r in (vit, resnet)] == [
        (0.04, 0.4), (1e-4, 1e-4),
    ]  # fmt: skip
    for recipe in (vit, resnet):
        assert (recipe.optimizer.final_lr, recipe.optimizer.clip_each_gradient_norm) == (1e-6, 3.0)
        assert (recipe.global_batch_size, recipe.epochs, recipe.smoothing.momentum) == (512, 100, 0.996)
        assert recipe.method.freeze_prototypes_steps == 2502  # type: ignore[union-attr]
    assert [r.method.drop_path for r in (vit, resnet)] == [0.1, 0.0]  # type: ignore[union-attr]
    scales = [[view.crop_scale for view in r.data.make_views()[1:3]] for r in (vit, resnet)]  # type: ignore[union-attr]
    assert scales == [[(0.4, 1.0), (0.05, 0.4)], [(0.14, 1.0), (0.05, 0.14)]]
    with pytest.raises(ConfigError, match="vit_small or resnet50"):
        recipes.dino_imagenet("vit_base")  # type: ignore[arg-type]


def test_moco_v3_has_the_numbers_of_its_reference_setups() -> None:
    def numbers(config: TrainingConfig) -> tuple[object, ...]:
        optimizer = config.optimizer
        rate = optimizer.name, optimizer.lr, optimizer.weight_decay, optimizer.warmup_epochs
        return *rate, config.epochs, config.global_batch_size, config.smoothing.momentum

    short, long = (recipes.moco_v3_imagenet(epochs=epochs) for epochs in (100, 1000))
    small, base = (recipes.moco_v3_imagenet(kind) for kind in ("vit_small", "vit_base"))  # type: ignore[arg-type]
    assert numbers(short) == ("lars", 0.6, 1e-6, 10, 100, 4096, 0.99)
    assert numbers(recipes.moco_v3_imagenet(epochs=300)) == ("lars", 0.3, 1e-6, 10, 300, 4096, 0.99)
    assert numbers(long) == ("lars", 0.3, 1.5e-6, 10, 1000, 4096, 0.996)
    assert numbers(small) == ("adamw", 1.5e-4, 0.1, 40, 300, 1024, 0.99)
    assert numbers(base) == ("adamw", 1.5e-4, 0.1, 40, 300, 4096, 0.99)
    assert [r.optimizer.exclude_norm_and_bias for r in (short, small)] == [True, False]
    assert [r.method.temperature for r in (short, small)] == [1.0, 0.2]  # type: ignore[attr-defined]
    assert [r.method.freeze_patches for r in (short, small)] == [False, True]  # type: ignore[attr-defined]
    for recipe, smallest in ((short, 0.2), (small, 0.08)):
        one, two = recipe.data.make_views()
        assert isinstance(one, CropView)
        assert isinstance(two, CropView)
        assert one.crop_scale == two.crop_scale == (smallest, 1.0)
        assert ((one.blur, one.solarise), (two.blur, two.solarise)) == ((1.0, 0.0), (0.1, 0.2))
        assert (one.brightness, one.contrast, one.saturation, one.hue) == (0.4, 0.4, 0.2, 0.1)
        assert recipe.momentum_at(0, total_steps=100) == 0.99
        assert recipe.momentum_at(100, total_steps=100) == 1.0
    with pytest.raises(ConfigError, match="resnet50, vit_small or vit_base, got 'resnet18'"):
        recipes.moco_v3_imagenet("resnet18")  # type: ignore[arg-type]


@pytest.mark.parametrize(("labels", "epoch", "passes"), [(4000, 474, 164), (1000, 505, 175)])
def test_mean_teacher_s_schedules_count_its_own_epochs(labels: int, epoch: int, passes: int) -> None:
    recipe = recipes.mean_teacher_cifar(labels=labels)
    per_epoch = 50_000 // (32 * 3)
    assert recipe.method.ramp_up_steps == 5 * epoch  # type: ignore[union-attr]
    assert (recipe.last_step(per_epoch), recipe.total_steps(per_epoch)) == (passes * 520, 210 * epoch)
    assert abs(recipe.last_step(per_epoch) - 180 * epoch) < per_epoch / 2
    assert recipe.momentum_at(0, total_steps=recipe.total_steps(per_epoch)) == 0.5
    assert recipe.momentum_at(10**4, total_steps=recipe.total_steps(per_epoch)) == 0.97


@pytest.mark.parametrize(
    ("where", "told"),
    [
        (Byol, "the teacher sees view 2 first"),
        (Byol, "update k has m(k + 1)"),
        (DinoConfig, "a trained gain of the last layer"),
        (DinoConfig, "moves at every step"),
        (DinoConfig, "class token"),
        (DinoConfig, "with antialiasing"),
        (MeanTeacherConfig, "Not followed: the network"),
        (WideResNet, "batch norms have an ε of 1e-3"),
        (WideResNet, "kekmodel's first blocks of stages 2 and 3"),
    ],
)
def test_what_is_not_as_in_the_reference_is_declared(where: type, told: str) -> None:
    assert told in " ".join((where.__doc__ or "").split())
