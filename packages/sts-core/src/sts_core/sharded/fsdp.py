"""The copy of a network that FSDP2 has sharded, which FSDP2 itself refuses to make: built anew and sharded alike."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sts_core.errors import PairingError
from sts_core.sharded.blocks import fsdp_modules, is_sharded, local, reshard

_HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
_MARKS = ("_is_fsdp_managed_module", "_fsdp_use_orig_params")


@torch.no_grad()
def copy_sharded(module: nn.Module) -> nn.Module:
    """A float32 copy of a module with FSDP2 parts, with the same shards; no rank ever holds more than its own."""
    reshard(module)
    memo = _skeletons(module)
    twin: nn.Module = memo[id(module)]
    for part in fsdp_states(module):
        _shard_like(part, memo)
    twin.to_empty(device=local(next(module.parameters())).device)
    for pairs in (_named(module.parameters, twin.parameters), _named(module.buffers, twin.buffers)):
        for source, target in pairs:
            local(target).copy_(local(source))
    return twin


def fsdp_states(module: nn.Module) -> list[Any]:
    """What FSDP keeps for each group of modules that was sharded in one call, inner ones first."""
    states = [part._get_fsdp_state() for part in reversed(fsdp_modules(module))]
    return list({id(state): state for state in states if state._fsdp_param_group is not None}.values())


def _named(*lists: Callable[[], Any]) -> Any:
    return zip(*(values() for values in lists), strict=True)


def _skeletons(module: nn.Module) -> dict[int, Any]:
    """For the id of each module and parameter its copy: modules of their first class, parameters without memory."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        if is_sharded(parameter):
            empty = torch.empty(parameter.shape, dtype=torch.float32, device="meta")
            memo[id(parameter)] = nn.Parameter(empty, requires_grad=False)
    parts = set(fsdp_modules(module))
    for part in module.modules():
        kind: Any = type(part)
        memo[id(part)] = object.__new__(kind.__mro__[kind._orig_cls_mro_index] if part in parts else kind)
    for part in module.modules():
        memo[id(part)].__dict__.update(
            {name: copy.deepcopy(_unhooked(name, value), memo) for name, value in vars(part).items() if _is_own(name)}
        )
    return memo


def _is_own(name: str) -> bool:
    """Whether an attribute is the module's and not a mark that FSDP has left on it."""
    from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY

    return name not in (*_MARKS, str(STATE_KEY), str(REGISTRY_KEY))


def _unhooked(name: str, value: Any) -> Any:
    """Hooks without those of FSDP, which `fully_shard` registers anew."""
    if name not in _HOOKS:
        return value
    return type(value)((key, hook) for key, hook in value.items() if not _is_fsdps(hook))


def _is_fsdps(hook: Any) -> bool:
    hook = getattr(hook, "hook", hook)
    return str(getattr(hook, "__module__", "")).startswith("torch.distributed.fsdp")


def _shard_like(state: Any, memo: dict[int, Any]) -> None:
    """Call `fully_shard` for the copies of a state's modules as it was called for them."""
    from torch.distributed.fsdp import fully_shard

    group = _group(state)
    modules = [memo[id(module)] for module in state._modules]
    shards = {id(memo[id(p.sharded_param)]): p.fsdp_placement for p in group.fsdp_params}
    fully_shard(
        modules if len(modules) > 1 else modules[0],
        mesh=group.mesh_info.mesh,
        reshard_after_forward=_reshard_after_forward(state, group),
        shard_placement_fn=lambda parameter: shards[id(parameter)],
        mp_policy=state._mp_policy,
        offload_policy=group.offload_policy,
    )


def _group(state: Any) -> Any:
    """What the parameters of a state share: mesh and policies."""
    groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]  # torch 2.6 knows the latter alone
    if len(groups) > 1 or any(parameter.is_dtensor for parameter in groups[0].fsdp_params):
        raise PairingError(
            "make_teacher copies what fully_shard cut on one mesh, but this student is cut on several or was a DTensor "
            "before: build and shard the teacher as the student was, and load the student's state_dict into it"
        )
    return groups[0]


def _reshard_after_forward(state: Any, group: Any) -> bool | int | None:
    if state._auto_reshard_after_forward:
        return None
    after = group.post_forward_mesh_info
    if after is None:
        return False
    return True if after is group.mesh_info else int(after.shard_mesh_size)
