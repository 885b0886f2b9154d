"""Tensor store of a checkpoint: each tensor once, tied again on load, in safetensors."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chop.base.files.library_errors import library_errors
from chop.base.files.reading import require_file
from chop.errors import CheckpointError
from chop.private.torch_api import fills_its_memory

PLAIN_CLASSES = (Tensor, nn.Parameter, nn.Buffer)
# What the safetensors format knows; tensors of other types are stored as their bytes.
STORABLE = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
        *(torch.int64, torch.int32, torch.int16, torch.int8),
        *(torch.uint64, torch.uint32, torch.uint16, torch.uint8),
        *(torch.float8_e4m3fn, torch.float8_e5m2),
    }
)

MAX_DIMENSIONS = 64
_PROBLEM = "is no readable safetensors file"
INLINE_FREE, INLINE_RATIO = 2**27, 64
"""Bytes that tensors in the text unpack to, and how many times their own size besides."""


class TensorStore:
    """Collects tensors under names, and describes each in a table of plain data.

    Attributes:
        table: per name `shape`, `dtype`, `requires_grad`, `parameter`, and where it matters
            `strides` and `storage_of`, the name of an earlier tensor that shares its memory.
        tensors: what has to be written, by name; memory that is shared is there once.
    """

    def __init__(self) -> None:
        self.table: dict[str, dict[str, Any]] = {}
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}
        self._memory: dict[tuple[Any, ...], str] = {}

    def add(self, name: str, tensor: Tensor) -> str:
        """Notes a tensor; returns the name under which the same tensor was noted first.

        Raises:
            CheckpointError: it has no data of its own (meta), is sparse, or of a subclass.
        """
        if id(tensor) in self._names:
            return self._names[id(tensor)]
        _check_storable(name, tensor)
        entry: dict[str, Any] = {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
        }
        if isinstance(tensor, nn.Parameter):
            entry["parameter"] = True
        if tensor.requires_grad:
            entry["requires_grad"] = True
        if not tensor.is_contiguous() and fills_its_memory(tensor):
            entry["strides"] = list(tensor.stride())
        memory = _memory(tensor)
        if tensor.numel() and memory in self._memory:
            entry["storage_of"] = self._memory[memory]
        else:
            self._memory[memory] = name
            self.tensors[name] = tensor.detach()
        self._names[id(tensor)] = name
        self.table[name] = entry
        return name


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    address = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.device)
    return (*address, tensor.dtype, tensor.shape, tensor.stride())


def _check_storable(name: str, tensor: Tensor) -> None:
    problem = None
    if type(tensor) not in PLAIN_CLASSES:
        problem = f"a {type(tensor).__name__}"
    elif tensor.layout is not torch.strided or tensor.is_quantized:
        problem = f"of layout {tensor.layout} and type {tensor.dtype}"
    elif tensor.is_meta:
        problem = "on the meta device, without data"
    if problem:
        raise CheckpointError(
            f"tensor '{name}' cannot be exported: it is {problem}; expected a dense tensor."
        )


def as_stored(tensor: Tensor) -> Tensor:
    """The contiguous CPU tensor that a file holds: bytes where safetensors lacks the type."""
    flat = tensor.detach().cpu().contiguous()
    if flat.dtype in STORABLE:
        return flat
    return flat.reshape(-1).view(torch.uint8)


class _Room:
    """Bytes that compressed tensors may unpack to: a multiple of theirs, and `INLINE_FREE` in all.

    Masks compress a thousandfold. So a file of a few kB could ask for all of memory.
    """

    def __init__(self) -> None:
        self.free = INLINE_FREE

    def take(self, size: int, packed: bytes) -> bool:
        """Whether `size` bytes may come of the packed ones; where they may, they are counted."""
        beyond = max(size - INLINE_RATIO * len(packed), 0)
        if beyond > self.free:
            return False
        self.free -= beyond
        return True


def pack_inline(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Small tensors as text, by name; those for which `_Room` is left are compressed."""
    room, found = _Room(), {}
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        data = flat.numpy().tobytes()
        packed = zlib.compress(data)
        if not room.take(len(data), packed):
            packed = zlib.compress(data, level=0)
        found[name] = base64.b64encode(packed).decode()
    return found


def unpack_inline(
    texts: Mapping[str, str], table: Mapping[str, Mapping[str, Any]]
) -> dict[str, Tensor]:
    """The bytes of tensors that `pack_inline` wrote, one-dimensional.

    Args:
        texts: by name.
        table: see `TensorStore.table`.
    Raises:
        CheckpointError: a text is not that, or they ask for more memory than `_Room` has.
    """
    room, found = _Room(), {}
    for name, text in texts.items():
        size = math.prod(_shape(table[name])) * _dtype(table[name]["dtype"]).itemsize
        try:
            packed = base64.b64decode(text)
            if not room.take(size, packed):
                raise CheckpointError(
                    f"tensor '{name}' unpacks to {size} bytes, too much for the file's size."
                )
            # The bound keeps a tampered file from unpacking into more than the table says.
            data = zlib.decompressobj().decompress(packed, max_length=max(size, 1))
        except CheckpointError:
            raise
        except (zlib.error, ValueError) as error:
            raise CheckpointError(f"tensor '{name}' cannot be unpacked: {error}.") from None
        found[name] = torch.frombuffer(bytearray(data or bytes(1)), dtype=torch.uint8)[: len(data)]
    return found


def read_file(path: Path, without: Collection[str] = ()) -> dict[str, Tensor]:
    """The tensors of a safetensors file.

    Raises:
        CheckpointError: it is none, or cut off.
    """
    with open_file(path) as file, library_errors(path, problem=_PROBLEM):
        return {name: file.get_tensor(name) for name in file.offset_keys() if name not in without}


@contextmanager
def open_file(path: Path) -> Iterator[Any]:
    """A safetensors file, as `safetensors.safe_open` gives it; it is mapped until the block ends.

    Raises:
        CheckpointError: it is none, or cut off.
    """
    from safetensors import safe_open

    with ExitStack() as stack:
        with library_errors(path, problem=_PROBLEM):
            file = stack.enter_context(safe_open(require_file(path, "weights"), framework="pt"))
        yield file


def restore(
    table: Mapping[str, Mapping[str, Any]],
    stored: Mapping[str, Tensor],
    on_meta: Collection[str] = (),
) -> dict[str, Tensor]:
    """The tensors that a table describes, tied as they were.

    Args:
        table: see `TensorStore.table`.
        stored: what the file holds, by name.
        on_meta: the names of those that are made on the meta device, whatever `stored` has.

    Raises:
        CheckpointError: a tensor is missing or of another shape or type than the table says.
    """
    restored: dict[str, Tensor] = {}
    for name, entry in table.items():
        if "storage_of" in entry:
            tensor = restored[entry["storage_of"]].detach()
        elif name in on_meta:
            tensor = _empty(name, entry, "meta")
        else:
            tensor = restore_one(name, entry, stored)
        if entry.get("parameter"):
            tensor = nn.Parameter(tensor, requires_grad=bool(entry.get("requires_grad")))
        elif entry.get("requires_grad"):
            tensor.requires_grad_()
        restored[name] = tensor
    return restored


def restore_one(name: str, entry: Mapping[str, Any], stored: Mapping[str, Tensor]) -> Tensor:
    """One tensor of a table, in memory of its own; see `restore`.

    Raises:
        CheckpointError: it is missing or of another shape or type than the table says.
    """
    if name not in stored:
        raise CheckpointError(f"the checkpoint lacks the data of tensor '{name}'.")
    data, dtype, shape = stored[name], _dtype(entry["dtype"]), _shape(entry)
    if entry.get("transposed") is True and data.dim() == 2:
        data = data.t()
    is_bytes = data.dtype == torch.uint8 and dtype != torch.uint8
    if is_bytes and data.numel() == math.prod(shape) * dtype.itemsize:
        data = data.clone().view(dtype).reshape(shape)
    if data.dtype != dtype or tuple(data.shape) != shape:
        raise CheckpointError(
            f"tensor '{name}': expected {dtype} {shape}, the file has {data.dtype} "
            f"{tuple(data.shape)}."
        )
    # Fresh memory: the file's own may be unaligned, and kernels may then sum in another order.
    return _empty(name, entry).copy_(data) if "strides" in entry else data.clone()


def _empty(name: str, entry: Mapping[str, Any], device: str = "cpu") -> Tensor:
    dtype, shape = _dtype(entry["dtype"]), _shape(entry)
    if "strides" not in entry:
        return torch.empty(shape, dtype=dtype, device=device)
    strides = tuple(entry["strides"])
    if not _is_dense(shape, strides):
        raise CheckpointError(f"tensor '{name}': strides {strides} do not fit the shape {shape}.")
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


def _shape(entry: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape that a table says: sizes of a tensor that memory can address."""
    shape = tuple(entry["shape"])
    are_sizes = all(type(size) is int and 0 <= size < 2**63 for size in shape)
    if not are_sizes or len(shape) > MAX_DIMENSIONS or math.prod(shape) >= 2**60:
        raise CheckpointError(
            f"the checkpoint has a tensor of the invalid shape {str(shape)[:200]}."
        )
    return shape


def _is_dense(shape: tuple[int, ...], strides: tuple[Any, ...]) -> bool:
    """Whether the strides are those of a permuted contiguous tensor: no gaps that take memory."""
    if len(strides) != len(shape) or not all(type(stride) is int for stride in strides):
        return False
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, str(name), None)
    if not isinstance(found, torch.dtype):
        raise CheckpointError(f"the checkpoint names '{name}', which is no dtype of torch.")
    return found
