"""Tensor store of a checkpoint in safetensors: each tensor once, ties restored on loading."""

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
# Types of the safetensors format; tensors of other types are stored as bytes.
STORABLE = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
        *(torch.int64, torch.int32, torch.int16, torch.int8),
        *(torch.uint64, torch.uint32, torch.uint16, torch.uint8),
        *(torch.float8_e4m3fn, torch.float8_e5m2),
    }
)

MAX_DIMENSIONS = 64
_PROBLEM = "is not a readable safetensors file"
INLINE_FREE, INLINE_RATIO = 2**27, 64
"""Bytes that inline tensors may unpack to, and the maximum compression ratio beyond that."""


class TensorStore:
    """Collection of named tensors with a table of their properties.

    Attributes:
        table: name -> `shape`, `dtype`, `requires_grad`, `parameter`, and if needed `strides` and
            `storage_of`, the name of an earlier tensor that shares its memory.
        tensors: tensors to write by name; shared memory appears once.
    """

    def __init__(self) -> None:
        self.table: dict[str, dict[str, Any]] = {}
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}
        self._memory: dict[tuple[Any, ...], str] = {}

    def add(self, name: str, tensor: Tensor) -> str:
        """Adds a tensor; returns the name under which the same tensor was added first.

        Raises:
            CheckpointError: if it has no data of its own (meta), is sparse, or has a subclass.
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
    """Returns the contiguous CPU tensor for a file, as bytes if safetensors lacks the type."""
    flat = tensor.detach().cpu().contiguous()
    if flat.dtype in STORABLE:
        return flat
    return flat.reshape(-1).view(torch.uint8)


class _Room:
    """Limit on unpacked bytes: a multiple of the compressed size, and `INLINE_FREE` in all.

    Masks compress a thousandfold, so that a file of a few kB could exhaust the memory.
    """

    def __init__(self) -> None:
        self.free = INLINE_FREE

    def take(self, size: int, packed: bytes) -> bool:
        """Returns whether `size` bytes may be unpacked, and counts them if so."""
        beyond = max(size - INLINE_RATIO * len(packed), 0)
        if beyond > self.free:
            return False
        self.free -= beyond
        return True


def pack_inline(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Returns small tensors as text by name, compressed as long as `_Room` allows."""
    room, texts = _Room(), {}
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        data = flat.numpy().tobytes()
        packed = zlib.compress(data)
        if not room.take(len(data), packed):
            packed = zlib.compress(data, level=0)
        texts[name] = base64.b64encode(packed).decode()
    return texts


def unpack_inline(
    texts: Mapping[str, str], table: Mapping[str, Mapping[str, Any]]
) -> dict[str, Tensor]:
    """Returns the bytes of tensors from `pack_inline`, one-dimensional.

    Args:
        texts: by name.
        table: see `TensorStore.table`.
    Raises:
        CheckpointError: if a text is malformed, or the tensors exceed the limit of `_Room`.
    """
    room, unpacked = _Room(), {}
    for name, text in texts.items():
        size = math.prod(_shape(table[name])) * _dtype(table[name]["dtype"]).itemsize
        try:
            packed = base64.b64decode(text)
            if not room.take(size, packed):
                raise CheckpointError(
                    f"tensor '{name}' unpacks to {size} bytes, too much for the file's size."
                )
            # The limit stops a manipulated file from unpacking to more than the table says.
            data = zlib.decompressobj().decompress(packed, max_length=max(size, 1))
        except CheckpointError:
            raise
        except (zlib.error, ValueError) as error:
            raise CheckpointError(f"tensor '{name}' cannot be unpacked: {error}.") from None
        unpacked[name] = torch.frombuffer(bytearray(data or bytes(1)), dtype=torch.uint8)[
            : len(data)
        ]
    return unpacked


def read_file(path: Path, without: Collection[str] = ()) -> dict[str, Tensor]:
    """Reads the tensors of a safetensors file.

    Raises:
        CheckpointError: if it is another kind of file, or truncated.
    """
    with open_file(path) as file, library_errors(path, problem=_PROBLEM):
        return {name: file.get_tensor(name) for name in file.offset_keys() if name not in without}


@contextmanager
def open_file(path: Path) -> Iterator[Any]:
    """Opens a safetensors file like `safetensors.safe_open`; it is mapped until the block ends.

    Raises:
        CheckpointError: if it is another kind of file, or truncated.
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
    """Returns the tensors that a table describes, with their ties.

    Args:
        table: see `TensorStore.table`.
        stored: tensors in the file, by name.
        on_meta: names of tensors to create on the meta device, regardless of `stored`.

    Raises:
        CheckpointError: if a tensor is missing, or its shape or type differs from the table.
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
    """Returns one tensor of a table in its own memory; see `restore`.

    Raises:
        CheckpointError: if it is missing, or its shape or type differs from the table.
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
    # Copies to new memory: unaligned memory may change the order of sums in kernels.
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
    """Returns the shape in a table, checked to be addressable."""
    shape = tuple(entry["shape"])
    are_sizes = all(type(size) is int and 0 <= size < 2**63 for size in shape)
    if not are_sizes or len(shape) > MAX_DIMENSIONS or math.prod(shape) >= 2**60:
        raise CheckpointError(
            f"the checkpoint has a tensor of the invalid shape {str(shape)[:200]}."
        )
    return shape


def _is_dense(shape: tuple[int, ...], strides: tuple[Any, ...]) -> bool:
    """Returns whether strides are those of a permuted contiguous tensor, without gaps in memory."""
    if len(strides) != len(shape) or not all(type(stride) is int for stride in strides):
        return False
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, str(name), None)
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError(f"the checkpoint names '{name}', which is not a dtype of torch.")
    return dtype
