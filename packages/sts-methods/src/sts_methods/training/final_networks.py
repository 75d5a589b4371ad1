"""The networks that a finished run leaves: student, teacher and the bank's teachers, each with what made it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from torch import nn

from sts_core import Network
from sts_methods.methods.registry import method_record
from sts_methods.runs.backbone_files import save_backbone
from sts_methods.training.config import TrainingConfig
from sts_methods.training.initial import InitialWeights
from sts_methods.training.learner import Learner


class FinalNetworks:
    """Writes backbones into a run folder; `plain` is the resolved config, `initial` the weights it started from."""

    def __init__(
        self, folder: Path, config: TrainingConfig, plain: Mapping[str, Any], initial: InitialWeights | None
    ) -> None:
        self.folder, self.config, self.plain = folder, config, plain
        mean, std = config.data.statistics
        images = {"image_size": config.data.image_size, "mean": mean, "std": std}
        self._provenance = images | ({} if initial is None else {"initial": initial.described()})

    def save(self, learner: Learner, *, rank: int, step: int) -> None:
        """Rank 0 leaves teacher and student (.safetensors and .json each), and with the others the bank's teachers."""
        if method_record(self.config.method) is None:
            return  # not registered: nobody else could build its backbone by name
        for network in get_args(Network) if rank == 0 else ():
            self._save(network, learner.method.backbone(network), network, self.plain["smoothing"], step)
        if (bank := learner.bank) is None:
            return
        for name, smoothing in self.plain["bank"].items():
            if (teacher := bank.fetch(name)) is not None:
                self._save(f"bank/{name}", teacher.get_submodule("backbone"), "teacher", smoothing, step)

    def _save(self, path: str, module: nn.Module, network: Network, smoothing: Mapping[str, Any], step: int) -> None:
        method = self.plain["method"]
        save_backbone(
            self.folder / path,
            module,
            backbone=method["backbone"],
            stem=method["stem"],
            network=network,
            method=method["name"],
            step=step,
            smoothing=smoothing,
            **self._provenance,
        )
