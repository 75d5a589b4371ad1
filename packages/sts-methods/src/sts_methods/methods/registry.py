"""All methods by name and by config."""

from sts_core.errors import ConfigError
from sts_methods.methods.base import StudentTeacherMethod
from sts_methods.methods.byol import Byol, ByolConfig
from sts_methods.methods.dino import Dino, DinoConfig
from sts_methods.methods.fixmatch import FixMatch, FixMatchConfig
from sts_methods.methods.mean_teacher import MeanTeacher, MeanTeacherConfig
from sts_methods.methods.moco import MoCo, MoCoConfig

MethodConfig = ByolConfig | MoCoConfig | FixMatchConfig | MeanTeacherConfig | DinoConfig

METHODS: dict[str, type[MethodConfig]] = {
    "byol": ByolConfig,
    "moco": MoCoConfig,
    "fixmatch": FixMatchConfig,
    "mean_teacher": MeanTeacherConfig,
    "dino": DinoConfig,
}


def method_name(config: MethodConfig) -> str:
    """The name under which `METHODS` holds the config's class."""
    return next(name for name, kind in METHODS.items() if isinstance(config, kind))


def build_method(config: MethodConfig, *, seed: int) -> StudentTeacherMethod:
    """The method that `config` describes, on the CPU and in train mode; its weights depend on config and seed alone."""
    match config:
        case ByolConfig():
            return Byol(config, seed=seed)
        case MoCoConfig():
            return MoCo(config, seed=seed)
        case FixMatchConfig():
            return FixMatch(config, seed=seed)
        case MeanTeacherConfig():
            return MeanTeacher(config, seed=seed)
        case DinoConfig():
            return Dino(config, seed=seed)
    raise ConfigError(f"a method is one of {', '.join(METHODS)}, got {type(config).__name__}: pass one's config")
