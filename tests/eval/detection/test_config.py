"""The recipe is MoCo's to the number, and a departure from it is named."""

from dataclasses import replace

import pytest

from sts_core.errors import ConfigError
from sts_eval.detection import DetectionConfig
from sts_eval.detection.schedule import learning_rate

PROTOCOL = DetectionConfig(data_root="VOCdevkit")


def test_the_defaults_are_the_settings_that_moco_published_for_voc_24k():
    assert PROTOCOL.train_splits == ("voc_2007_trainval", "voc_2012_trainval")
    assert PROTOCOL.test_split == "voc_2007_test"
    assert PROTOCOL.train_sizes == (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)
    assert (PROTOCOL.test_size, PROTOCOL.max_size) == (800, 1333)
    assert (PROTOCOL.iterations, PROTOCOL.batch_size, PROTOCOL.learning_rate) == (24_000, 16, 0.02)
    assert (PROTOCOL.lr_steps, PROTOCOL.lr_gamma) == ((18_000, 22_000), 0.1)
    assert (PROTOCOL.warmup_iterations, PROTOCOL.warmup_factor) == (100, 1e-3)
    assert (PROTOCOL.momentum, PROTOCOL.weight_decay, PROTOCOL.weight_decay_norm) == (0.9, 1e-4, 0.0)
    assert (PROTOCOL.rpn_train_pre_nms, PROTOCOL.rpn_train_post_nms) == (12_000, 2_000)
    assert (PROTOCOL.rpn_test_pre_nms, PROTOCOL.rpn_test_post_nms) == (6_000, 1_000)
    assert PROTOCOL.precise_bn_iterations == 200
    assert PROTOCOL.backend == "detectron2"


def test_the_learning_rate_warms_up_linearly_and_drops_tenfold_at_each_step():
    assert learning_rate(0, PROTOCOL) == pytest.approx(0.02 / 1000)
    assert learning_rate(50, PROTOCOL) == pytest.approx((0.00002 + 0.02) / 2)
    assert learning_rate(100, PROTOCOL) == learning_rate(17_999, PROTOCOL) == 0.02
    assert learning_rate(18_000, PROTOCOL) == pytest.approx(0.002)
    assert learning_rate(22_000, PROTOCOL) == learning_rate(23_999, PROTOCOL) == pytest.approx(0.0002)


def test_a_scaled_schedule_keeps_its_proportions():
    half = PROTOCOL.scaled(12_000)
    assert (half.iterations, half.lr_steps, half.warmup_iterations) == (12_000, (9_000, 11_000), 100)
    assert PROTOCOL.scaled(24).warmup_iterations == 12
    assert PROTOCOL.scaled(4).lr_steps == (3,)


def test_a_smaller_batch_trains_longer_with_a_lower_rate():
    small = PROTOCOL.with_batch_size(8)
    assert (small.batch_size, small.learning_rate, small.iterations) == (8, 0.01, 48_000)
    assert small.lr_steps == (36_000, 44_000)


def test_the_protocol_departs_from_itself_in_nothing_and_another_seed_is_no_departure():
    assert replace(PROTOCOL, seed=3, num_workers=0, backend="torchvision").differences() == {}


def test_each_departure_is_named_with_both_values():
    changed = replace(PROTOCOL, batch_size=8, horizontal_flip=False)
    assert changed.differences() == {"batch_size": (16, 8), "horizontal_flip": (True, False)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "mmdetection"}, "backend must be detectron2 or torchvision, got 'mmdetection'"),
        ({"test_split": "coco_val"}, "voc_<year>_<image set>, got 'coco_val'"),
        ({"train_splits": ()}, "train_splits must be a tuple"),
        ({"train_sizes": (480, -1)}, "train_sizes must be above 0, got -1"),
        ({"iterations": 0, "lr_steps": ()}, "iterations must be above 0, got 0"),
        ({"iterations": 10.5}, "iterations must be a whole number, got 10.5"),
        ({"learning_rate": float("nan")}, "learning_rate must be above 0, got nan"),
        ({"batch_size": 7}, "group_size must divide batch_size, got 2 and 7"),
        ({"iterations": 200}, "lr_steps must increase and lie between 0 and iterations=200"),
        ({"lr_steps": (5, 3)}, "lr_steps must increase"),
        ({"iterations": 50, "lr_steps": ()}, "warmup_iterations must not exceed iterations=50, got 100"),
        ({"box_nms": 1.5}, "box_nms must be at most 1, got 1.5"),
    ],
)
def test_a_setting_outside_its_domain_is_refused_with_the_rule_and_the_value(settings, message):
    with pytest.raises(ConfigError) as error:
        DetectionConfig(data_root="VOCdevkit", **settings)
    assert message in str(error.value)
