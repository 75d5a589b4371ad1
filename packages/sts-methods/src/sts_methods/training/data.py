"""The batches of a run, checked against what its method needs."""

from sts_core import ConfigError
from sts_methods.data.batches import TrainingData, build_training_data
from sts_methods.methods.registry import method_record
from sts_methods.runs.runtime import Runtime
from sts_methods.training.config import TrainingConfig


def build_data(config: TrainingConfig, runtime: Runtime) -> TrainingData:
    """This rank's part of the batches that the config asks for."""
    data = build_training_data(
        config.data,
        seed=config.seed,
        global_batch_size=config.global_batch_size,
        accumulation=config.accumulation,
        rank=runtime.rank,
        world_size=runtime.world_size,
        device=runtime.device,
        labelled_order=getattr(config.method, "labelled_order", "epochs"),
    )
    if data.steps_per_epoch < 1:
        raise ConfigError(
            f"an epoch needs at least one batch, but {data.num_samples} images do not fill one of "
            f"{config.global_batch_size}: lower global_batch_size"
        )
    record = method_record(config.method)
    if data.shares is not None and not (record and record.takes_uneven_shares):
        raise ConfigError(
            f"global_batch_size must be divisible by accumulation x workers for this method, got "
            f"{config.global_batch_size}, which gives the workers {', '.join(map(str, data.shares))} images"
        )
    classes = None if record is None else record.num_classes(config.method)
    if classes is not None and classes != data.num_classes:
        raise ConfigError(
            f"method.num_classes must be the data's, got {classes} for {data.num_classes} classes: "
            f"set it to {data.num_classes}"
        )
    return data
