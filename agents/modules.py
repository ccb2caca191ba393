"""Which modules an optimizer trains: the outermost ones that hold its parameters, found without asking the script.

All live modules are looked at once (not at every step): a script's model is often wrapped (DistributedDataParallel,
FSDP, OptimizedModule, LightningModule), and the call that brings the batch is the outermost one. torch-free: modules
are told by what they have, so that the sampler alone imports torch.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MINOR_SHARE = 0.1
"""Modules with less than this share of the largest one's bytes (a learned loss weight) do not speak for the batch."""
MAX_ROOTS = 4


def live_modules(module_type: type) -> list[Any]:
    """Every module object that the garbage collector knows. `type()`, as `isinstance` would wake lazy proxies."""
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, module_type)}
    return [o for o in objects if type(o) in kinds]


def outermost(modules: Iterable[Any], wanted: set[int]) -> list[Any]:
    """Roots among `modules` that hold parameters with an id in `wanted`, largest share first, minor ones left out."""
    parents: dict[int, list[Any]] = {}
    holders = []
    for module in modules:
        for child in _children(module):
            parents.setdefault(id(child), []).append(module)
        held = sum(_bytes(p) for p in _own_parameters(module) if id(p) in wanted)
        if held:
            holders.append((module, held))
    share: dict[int, tuple[Any, int]] = {}
    for module, held in holders:
        for top in _tops(module, parents):
            share[id(top)] = (top, share.get(id(top), (top, 0))[1] + held)
    ranked = sorted(share.values(), key=lambda pair: -pair[1])
    return [top for top, held in ranked if held >= MINOR_SHARE * ranked[0][1]][:MAX_ROOTS]


def _tops(module: Any, parents: Mapping[int, Sequence[Any]]) -> list[Any]:
    """Ancestors without a parent (the module itself if it has none); each once, cycles cut."""
    tops, seen, todo = [], {id(module)}, [module]
    while todo:
        current = todo.pop()
        above = parents.get(id(current), ())
        if not above:
            tops.append(current)
        for parent in above:
            if id(parent) not in seen:
                seen.add(id(parent))
                todo.append(parent)
    return tops


def parts(module: Any, wanted: set[int]) -> list[Any]:
    """The modules right below that hold parameters in `wanted`; lists of modules are looked through."""
    found = []
    for child in _children(module):
        if getattr(type(child), "forward", None) is getattr(_base(type(child)), "forward", None):
            found += parts(child, wanted)  # never called itself
        elif held_bytes(child, wanted):
            found.append(child)
    return found


def _base(module_type: type) -> type:
    """torch.nn.Module: the last class before object, told by where it is defined."""
    return next((c for c in module_type.__mro__ if c.__module__ == "torch.nn.modules.module"), object)


def held_bytes(module: Any, wanted: set[int]) -> int:
    """Bytes of the parameters in `wanted` that a module holds, itself or below."""
    return sum(_bytes(p) for p in module.parameters() if id(p) in wanted)


def innermost(root: Any) -> Any:
    """The module that a script saves: wrappers (one child, nothing of their own) stripped."""
    module = root
    for _ in range(8):
        children = list(_children(module))
        if len(children) != 1 or list(_own_parameters(module)):
            break
        module = children[0]
    return module


@dataclass(frozen=True, slots=True)
class Facts:
    """Physical facts of the modules that an optimizer trains."""

    parameters: int
    parameter_bytes: int
    gradient_bytes: int
    dtype: str
    device: str


def facts(roots: Iterable[Any]) -> Facts:
    """Count parameters once each; the type and the device of most bytes stand for all. Sharded ones count whole."""
    count = size = gradients = 0
    types: dict[str, int] = {}
    devices: dict[str, int] = {}
    seen: set[int] = set()
    for parameter in (p for root in roots for p in root.parameters()):
        if id(parameter) in seen:
            continue
        seen.add(id(parameter))
        held = _bytes(parameter)
        count, size = count + parameter.numel(), size + held
        gradients += held if parameter.requires_grad else 0
        kind, device = str(parameter.dtype).removeprefix("torch."), str(parameter.device)
        types[kind] = types.get(kind, 0) + held
        devices[device] = devices.get(device, 0) + held
    return Facts(count, size, gradients, max(types, key=types.__getitem__), max(devices, key=devices.__getitem__))


def parameter_ids(optimizer: Any) -> set[int]:
    """Ids of the parameters that an optimizer updates."""
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def loaded_step(optimizer: Any) -> float | None:
    """Largest step count in an optimizer's state, after its first step: what a checkpoint brought, plus one.

    Reading it from a GPU waits for the device, once per optimizer. None: its state has no count (SGD).
    """
    largest: float | None = None
    for state in list(optimizer.state.values())[:8]:
        step = state.get("step") if isinstance(state, Mapping) else None
        if step is not None:
            largest = max(largest or 0.0, float(step))
    return largest


def _children(module: Any) -> Iterator[Any]:
    return (child for child in module.__dict__.get("_modules", {}).values() if child is not None)


def _own_parameters(module: Any) -> Iterator[Any]:
    return (p for p in module.__dict__.get("_parameters", {}).values() if p is not None)


def _bytes(parameter: Any) -> int:
    return int(parameter.numel()) * int(parameter.element_size())
