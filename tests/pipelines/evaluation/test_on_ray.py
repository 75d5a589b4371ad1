"""`sts evaluate` by Ray Train workers: what they measure together is what one process measures."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from sts_eval import read_results
from sts_eval.detection.synthetic import narrow_config, write_synthetic_voc
from sts_pipelines.cli.main import main
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.plain import to_dict
from sts_pipelines.launch.driver import launch
from sts_pipelines.launch.job import jobs_of

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    # Ray warns about its own deprecated settings and leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]
Tiny = Callable[..., PipelineConfig]


def trained(tiny: Tiny, backbone: str) -> Path:
    pipeline = tiny("byol-digits-tma", steps=1)
    method = replace(pipeline.training.method, backbone=backbone)
    evaluation = replace(pipeline.evaluation, after_training=())
    pipeline = replace(pipeline, training=replace(pipeline.training, method=method), evaluation=evaluation)
    launch(jobs_of(pipeline), name=pipeline.run_name, folder=pipeline.folder)
    return pipeline.folder


def measured(folder: Path) -> dict[tuple[str, str, str], float]:
    return {(e["evaluation"], e["network"], e["metric"]): e["value"] for e in read_results(folder).entries}


def write_arrays(root: Path) -> Path:
    """Two corruptions of 30 digits in the layout of CIFAR-10-C, darker with the severity."""
    root.mkdir()
    digits = load_digits()
    images = np.kron(digits.images[:30] * 15, np.ones((4, 4))).repeat(3).reshape(30, 32, 32, 3)
    darker = np.concatenate([images / severity for severity in range(1, 6)])
    for name in ("contrast", "brightness"):
        np.save(root / f"{name}.npy", darker.astype(np.uint8))
    np.save(root / "labels.npy", digits.target[:30])
    return root


def test_two_workers_measure_what_one_process_does(tiny: Tiny, tmp_path: Path, ray_cluster: None) -> None:
    folder = trained(tiny, "test_resnet")
    released = write_arrays(tmp_path / "digits-c")
    evaluate = ["evaluate", str(folder), "--only", "linear,knn,imagenet-c", "--networks", "teacher"]
    evaluate += ["--evaluation.imagenet-c-root", str(released)]
    assert main(evaluate) == 0
    alone = measured(folder)
    (folder / "results.json").unlink()
    assert main([*evaluate, "--cluster.num-workers", "2"]) == 0
    together = measured(folder)
    assert {kind for kind, _, _ in alone} == {"linear", "knn", "imagenet-c"}
    (entry,) = (e for e in read_results(folder).entries if e["evaluation"] == "imagenet-c")
    assert {name: len(row) for name, row in entry["cells"].items()} == {"contrast": 5, "brightness": 5}
    assert together == pytest.approx(alone, abs=0.3)  # one of the 359 test images may fall on the other side


def flags(prefix: str, values: dict[str, Any]) -> list[str]:
    pairs = [(f"{prefix}.{name.replace('_', '-')}", value) for name, value in values.items()]
    return [
        part
        for flag, value in pairs
        for part in (flag, ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
    ]


def test_two_workers_fine_tune_a_detector_of_each_network(tiny: Tiny, tmp_path: Path, ray_cluster: None) -> None:
    folder = trained(tiny, "resnet26")
    voc = narrow_config(write_synthetic_voc(tmp_path / "voc", splits={"trainval": 2, "test": 2}), iterations=2)
    voc = replace(voc, train_sizes=(64,), test_size=64, max_size=96, batch_size=2, precise_bn_iterations=1)
    options = flags("--evaluation.voc", to_dict(voc))
    assert main(["evaluate", str(folder), "--only", "voc", "--cluster.num-workers", "2", *options]) == 0
    entries = [entry for entry in read_results(folder).entries if entry["evaluation"] == "voc"]
    assert {(entry["network"], entry["metric"]) for entry in entries} == {
        (network, metric) for network in ("teacher", "student") for metric in ("AP", "AP50", "AP75")
    }
    assert {entry["backend"] for entry in entries} == {"torchvision"}
    (log,) = folder.glob("voc-teacher-*/metrics.jsonl")
    assert log.read_text().count("\n") >= 1
