import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from sts_core.errors import ConfigError
from sts_eval import (
    CheckpointAccuracy,
    DataError,
    classification_accuracy,
    evaluate_checkpoints,
    few_labels,
    top_k_accuracy,
)


def records(network, values):
    return [CheckpointAccuracy(100 * i, network, value) for i, value in enumerate(values)]


def test_the_median_is_over_the_last_twenty_checkpoints_only():
    values = [99.0] * 5 + [50.0 + i for i in range(20)]
    (result,) = few_labels(records("teacher", values))
    assert (result.last, result.best, result.median_of_last) == (69.0, 99.0, 59.5)
    assert (result.num_in_median, result.num_checkpoints) == (20, 25)


def test_fewer_checkpoints_are_all_taken_and_counted():
    (result,) = few_labels(records("student", [10.0, 30.0, 20.0]))
    assert (result.last, result.best, result.median_of_last, result.num_in_median) == (20.0, 30.0, 20.0, 3)


def test_teacher_and_student_are_kept_apart_and_order_does_not_matter():
    both = records("student", [1.0, 2.0]) + records("teacher", [3.0, 4.0])
    teacher, student = few_labels(list(reversed(both)))
    assert (teacher.network, teacher.last) == ("teacher", 4.0)
    assert (student.network, student.last) == ("student", 2.0)


def test_entries_label_last_best_and_median():
    (result,) = few_labels(records("teacher", [10.0, 30.0, 20.0]))
    assert {e["num_checkpoints"] for e in result.entries()} == {3}  # what best is the best of
    kinds = [(e["metric"], e["which"], e["value"]) for e in result.entries()]
    assert kinds == [("top1", "last", 20.0), ("top1", "best", 30.0), ("top1-median", "last", 20.0)]


def test_a_classifier_is_counted_in_batches_and_left_as_it_was(digit_images):
    _, test = digit_images
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    accuracy = classification_accuracy(model, test)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    with torch.no_grad():
        assert accuracy == top_k_accuracy(model.eval()(test.images), test.targets)


def test_each_checkpoint_is_evaluated_for_each_network(digit_images):
    models = [nn.Sequential(nn.Flatten(), nn.Linear(64, 10)) for _ in range(2)]
    found = evaluate_checkpoints([(5, {"teacher": models[0], "student": models[1]})], digit_images[1])
    assert [(record.step, record.network) for record in found] == [(5, "teacher"), (5, "student")]
    assert found[1].top1 == classification_accuracy(models[1], digit_images[1])[1]


def test_nothing_to_sum_up_and_wrong_widths_are_refused(digit_images):
    with pytest.raises(ConfigError, match="at least one checkpoint"):
        few_labels([])
    with pytest.raises(ConfigError, match=r"one output per class, got 3 outputs for 10 classes .* linear evaluation"):
        classification_accuracy(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), digit_images[1])


def test_no_images_and_labels_without_an_output_are_refused():
    images, model = torch.zeros(6, 4), nn.Linear(4, 3)
    with pytest.raises(ConfigError, match="at least one image"):
        classification_accuracy(model, TensorDataset(images[:0], torch.arange(0)))
    with pytest.raises(DataError, match=r"test labels must lie in 0\.\.2, got 0\.\.5"):
        classification_accuracy(model, TensorDataset(images, torch.arange(6)))
