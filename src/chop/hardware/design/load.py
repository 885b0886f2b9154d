"""Weights that are written at run time: address map, words and the files for software."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from chop.errors import ConfigError
from chop.hardware.design.instances import Instance
from chop.hardware.design.plan import Memory
from chop.hardware.design.port import Port
from chop.hardware.templates import render

WEIGHTS = "weights"
"""Port that takes the words of weights, and folder of the files for software."""
WORDS_FILE = f"{WEIGHTS}/weights.hex"
"""Project path of the words, which testbenches send."""
WORD_BITS = 32
"""Bits of a word of the port."""
LEAST_WINDOW = 4096
"""Minimum bytes of the AXI4-Lite registers, and of the window for weights behind them."""
REGISTERS = (
    ("control", 0x0, "write 1 to bit 0 to reset the circuit; loadable weights are written again"),
    ("status", 0x4, "bit 0: all weights are written (1 if weights are fixed); bit 1: frame_error"),
    ("samples", 0x8, "samples that left since the reset"),
    ("words", 0xC, "words of weights that were written since the reset (0 if weights are fixed)"),
)
"""Name, byte address and purpose of the AXI4-Lite registers."""
MOST_WORDS = 2**24
"""Maximum number of words, which the addresses of `chop_ram` can count."""


@dataclass(frozen=True)
class LoadableMemory:
    """A memory with weights, and its place among the words of the port.

    Attributes:
        component: instance that reads the memory.
        parameter: module parameter with the file of a read-only memory, such as `WEIGHT_FILE`.
        memory: its contents.
        base: address of its first word.
    """

    component: str
    parameter: str
    memory: Memory
    base: int

    @property
    def name(self) -> str:
        """Name in the address map."""
        return f"{self.component}_{memory_suffix(self.parameter)}"

    @property
    def stride(self) -> int:
        """Words of 32 bits from one word of the memory to the next, a power of two."""
        parts = -(-self.memory.width // WORD_BITS)
        return 1 << (parts - 1).bit_length()

    @property
    def size(self) -> int:
        """Number of words of 32 bits."""
        return len(self.memory.words) * self.stride

    @property
    def words(self) -> Iterator[int]:
        """Words of 32 bits, the lowest bits of a word of the memory first."""
        for word in self.memory.words:
            for part in range(self.stride):
                yield word >> WORD_BITS * part & (1 << WORD_BITS) - 1

    @property
    def base_parameter(self) -> str:
        """Module parameter with the address, such as `WEIGHT_BASE`."""
        return self.parameter.removesuffix("FILE") + "BASE"

    @property
    def row(self) -> dict[str, str | int]:
        """Row of the address map."""
        return {
            "memory": self.name,
            "first word": self.base,
            "words": self.size,
            "entries": len(self.memory.words),
            "bits of an entry": self.memory.width,
            "words of an entry": self.stride,
        }


@dataclass(frozen=True)
class Load:
    """Words that are written into a circuit before its first sample.

    Attributes:
        memories: memories in the order of their addresses.
    """

    memories: Sequence[LoadableMemory]

    @property
    def port(self) -> Port:
        """Port of the top module that takes the words. Its sample is all of them."""
        return load_port(sum(memory.size for memory in self.memories))

    @property
    def words(self) -> list[int]:
        """All words in the order in which they are written."""
        return [word for memory in self.memories for word in memory.words]

    def hex(self) -> str:
        """Text for `$readmemh`, one line per word."""
        return Memory(tuple(self.words), WORD_BITS).hex()

    def binary(self) -> bytes:
        """Words as little-endian bytes."""
        return b"".join(word.to_bytes(WORD_BITS // 8, "little") for word in self.words)

    def header(self) -> str:
        """C header with the address map."""
        words = self.port.beats
        sizes = {"words": words, "window": window(words)}
        return render("weights.h", memories=self.memories, registers=REGISTERS, **sizes)

    def comment_lines(self) -> list[str]:
        """Returns the lines of a comment on the port in a module header."""
        words = f"{self.port.beats:,} words of {WORD_BITS} bits after each reset"
        return [f"// Input {WEIGHTS}: {words}."]

    def declaration(self) -> list[str]:
        """Port declarations in the module header, with a comment."""
        first, *others = self.port.declaration()
        return ["\n  ".join([*self.comment_lines(), first]), *others]

    def parameters(self, component: str) -> dict[str, int]:
        """Returns the module parameters with the addresses of a component's memories."""
        return {m.base_parameter: m.base for m in self.memories if m.component == component}


def window(words: int) -> int:
    """Returns the byte address of the AXI4-Lite window for weights, a power of two.

    >>> window(0), window(1025)
    (4096, 8192)
    """
    return max(LEAST_WINDOW, 1 << (4 * words - 1).bit_length())


def load_port(words: int) -> Port:
    """Returns the port for a number of words."""
    return Port(WEIGHTS, 1, WORD_BITS, words, True)


def memory_suffix(parameter: str) -> str:
    """Returns the end of a memory's name.

    >>> memory_suffix("WEIGHT_FILE"), memory_suffix("FILE")
    ('weight', 'file')
    """
    return parameter.removesuffix("_FILE").lower()


def loadable(instances: Sequence[Instance]) -> Load | None:
    """Returns the loadable memories of a circuit in the order of its layers; None without any.

    Raises:
        ConfigError: if there are more than `MOST_WORDS` words.
    """
    memories: list[LoadableMemory] = []
    base = 0
    for part in instances:
        for parameter, memory in _loadable(part.plan.memories):
            memories.append(LoadableMemory(part.name, parameter, memory, base))
            base += memories[-1].size
    if base > MOST_WORDS:
        raise ConfigError(
            f"hardware: expected at most {MOST_WORDS:,} loadable words of {WORD_BITS} bits, got "
            f"{base:,}; use fixed weights."
        )
    return Load(memories) if memories else None


def _loadable(memories: Mapping[str, Memory]) -> Iterator[tuple[str, Memory]]:
    return ((name, memory) for name, memory in memories.items() if memory.is_loadable)
