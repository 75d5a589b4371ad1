"""The README's example runs as it stands, but for its size."""

import re
from pathlib import Path

import pytest
import torch
from PIL import Image

from sts_methods import load_backbone

README = Path(__file__).parents[2] / "packages" / "sts-methods" / "README.md"


def _example() -> str:
    match = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert match is not None
    return match[1]


def _shrunk(code: str) -> str:
    smaller = {
        "image_size=224": "image_size=32",
        "global_batch_size=64": "global_batch_size=8",
        "epochs=100": "steps=2",
    }
    for old, new in smaller.items():
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    return code


def test_the_example_trains_on_a_folder_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for number in range(10):
        pixels = torch.randint(256, (40, 50, 3), generator=torch.Generator().manual_seed(number), dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(tmp_path / "photos" / f"{number}.jpg")
    names: dict[str, object] = {}
    exec(_shrunk(_example()), names)
    backbone, manifest = load_backbone(tmp_path / "runs" / "photos" / "teacher")
    assert manifest["network"] == "teacher"
    assert manifest["step"] == 2
    images = torch.zeros(1, 3, 32, 32)
    result = names["result"]
    expected = result.backbone("teacher").eval()(images)  # type: ignore[attr-defined]
    torch.testing.assert_close(backbone(images).detach(), expected)


def test_the_example_is_ten_lines_at_most() -> None:
    assert len([line for line in _example().splitlines() if line]) <= 10
