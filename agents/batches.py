"""Size of a batch from the arguments of a forward pass, without importing torch and without touching any data.

Samples = first dimension of the first tensor found (positional arguments before keywords, depth first; in keyword
batches `input_ids` and its like come first). Tokens = elements of that tensor where it is an integer [batch, length].
Known shapes: packed sequences, a list of images or of tensors with different first dimensions (one each), a list of
texts, graph batches, nested tensors, mappings, data classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Size = tuple[int, int]
"""(samples, tokens); (0, 0) = nothing recognised."""

NOTHING: Size = (0, 0)
MAX_DEPTH = 4
MAX_ITEMS = 32
_integer_types: dict[Any, bool] = {}
FIRST_KEYS = ("input_ids", "inputs_embeds", "pixel_values", "input_features", "input_values", "inputs", "input", "x")


def batch_size(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Size:
    """Samples and tokens of one forward pass."""
    for value in args:
        size = _size(value, 0)
        if size[0]:
            return size
    return _mapping(kwargs, 0) if kwargs else NOTHING


def _size(value: Any, depth: int) -> Size:
    """Size of one value. Tensors are recognised by what they have, not by their class."""
    if hasattr(value, "dim") and hasattr(value, "dtype"):
        return _tensor(value)
    if value is None or isinstance(value, (str, bytes, int, float)) or depth > MAX_DEPTH:
        return NOTHING
    if hasattr(value, "batch_sizes"):
        return _packed(value)
    if isinstance(value, Mapping):
        return _mapping(value, depth)
    if isinstance(value, (list, tuple)):
        return _sequence(value, depth)
    return _object(value, depth)


def _tensor(value: Any) -> Size:
    dimensions = value.dim()
    if dimensions == 0:
        return NOTHING
    samples = value.size(0)
    if type(samples) is not int:  # a traced or symbolic size: nothing to count
        return NOTHING
    if dimensions == 2:
        dtype = value.dtype
        integer = _integer_types.get(dtype)
        if _is_integer(dtype) if integer is None else integer:
            return samples, value.numel()
    return samples, 0


def _is_integer(dtype: Any) -> bool:
    """Whether elements of this type can be token ids. One byte: booleans and images."""
    known = not getattr(dtype, "is_floating_point", True) and not dtype.is_complex and dtype.itemsize > 1
    _integer_types[dtype] = known
    return known


def _packed(value: Any) -> Size:
    """A PackedSequence: batch_sizes (always on the CPU) holds the sequences still running at each position."""
    data = value.data
    return int(value.batch_sizes[0]), data.size(0) if data.dim() == 1 and _is_integer(data.dtype) else 0


def _mapping(value: Mapping[Any, Any], depth: int) -> Size:
    for key in FIRST_KEYS:
        if key in value:
            size = _size(value[key], depth + 1)
            if size[0]:
                return size
    return _first(list(value.values())[:MAX_ITEMS], depth)


def _first(values: Sequence[Any], depth: int) -> Size:
    for value in values:
        size = _size(value, depth + 1)
        if size[0]:
            return size
    return NOTHING


def _sequence(value: Sequence[Any], depth: int) -> Size:
    if value and isinstance(value[0], str):
        return len(value), 0
    if isinstance(value, list) and _one_tensor_each(value):
        return len(value), 0
    return _first(value[:MAX_ITEMS], depth)


def _one_tensor_each(values: list[Any]) -> bool:
    """Whether a list holds one tensor per sample: images [channels, height, width], or different first dimensions."""
    if len(values) < 2 or not all(hasattr(v, "dtype") and hasattr(v, "dim") and v.dim() > 0 for v in values):
        return False
    first = {v.size(0) for v in values}
    return len(first) > 1 or (first <= {1, 3, 4} and all(v.dim() == 3 for v in values))


def _object(value: Any, depth: int) -> Size:
    """Graph batches and the like name their size; data classes are looked through. Nothing else is touched."""
    for name in ("num_graphs", "batch_size"):
        known = getattr(value, name, None)
        if isinstance(known, int) and not isinstance(known, bool):
            return known, 0
        if isinstance(known, Sequence) and known and isinstance(known[0], int):
            return known[0], 0
    fields = getattr(type(value), "__dataclass_fields__", None)
    return _first([getattr(value, name, None) for name in list(fields)[:MAX_ITEMS]], depth) if fields else NOTHING
