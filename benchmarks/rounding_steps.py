"""Processor time of a step of learned rounding, beside a step of auto-round, in turns.

    python benchmarks/rounding_steps.py --model FOLDER --data FOLDER

Both tools round the first `--blocks` blocks of a decoder from the same rows, with equal steps and
rows per step. Each runs in a thread of its own, and the threads take turns after every step. A step
of one is thus paired with the next of the other, under the same load of the machine. Times are
those of the thread's processor; the ratio is the median over pairs with a 95 % interval. The start
and end of a block, such as the search for scales, do not count.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from language_table import LEARNED, Case, Integers, Subject

from chop.base.tables import markdown_table
from chop.bench.record import format_seconds
from chop.bench.statistics import paired_ratio
from chop.quantization.rounding import learned

CHOP = LEARNED
GRIDS: dict[str, tuple[str, Integers]] = {
    "3.5": ("group_integer:width=3:group_size=32", Integers(3, 32)),
    "4.25": ("group_integer:width=4:group_size=64", Integers(4, 64)),
}
"""Name of a row -> the format of chop, and the grid of auto-round with as many bits."""


class Turns:
    """Two threads of which one runs at a time, and their times per step.

    Attributes:
        seconds: processor seconds of the steps by name of the thread.
    """

    def __init__(self, names: tuple[str, str]) -> None:
        self.seconds: dict[str, list[float]] = {name: [] for name in names}
        self._waiting, self._turn = threading.Condition(), names[0]
        self._began = dict.fromkeys(names, 0.0)
        self._running = list(names)

    def wait(self) -> None:
        """Waits for the turn of this thread."""
        name = threading.current_thread().name
        with self._waiting:
            self._waiting.wait_for(lambda: self._turn == name)

    def leave(self, is_done: bool = False) -> None:
        """Gives the turn to the other thread, if it still runs."""
        name = threading.current_thread().name
        with self._waiting:
            if is_done:
                self._running.remove(name)
            others = [other for other in self._running if other != name]
            if others:
                self._turn = others[0]
            self._waiting.notify_all()

    def step(self, is_first: bool) -> None:
        """Records the step that has ended, unless this is the first one of a block."""
        name = threading.current_thread().name
        if not is_first:
            self.seconds[name].append(time.thread_time() - self._began[name])
        self.leave()
        self.wait()
        self._began[name] = time.thread_time()


def hooks(turns: Turns) -> list[Any]:
    """Returns patches that call `turns.step` before each step of both tools draws its rows."""
    from auto_round.compressors.utils import IndexSampler

    order: Callable[..., Iterator[list[int]]] = learned._order
    next_batch: Callable[..., Any] = IndexSampler.next_batch

    def in_turns(*args: Any) -> Iterator[list[int]]:
        for number, batches in enumerate(order(*args)):
            turns.step(is_first=number == 0)
            yield batches

    def next_in_turn(sampler: Any) -> Any:
        turns.step(is_first=not hasattr(sampler, "has_begun"))
        sampler.has_begun = True
        return next_batch(sampler)

    return [
        patch.object(learned, "_order", in_turns),
        patch.object(IndexSampler, "next_batch", next_in_turn),
    ]


def measure(subject: Subject, name: str, peer: str) -> dict[str, str]:
    """Returns the row of a pair of tools."""
    text, grid = GRIDS[name]
    cases = {CHOP: Case(CHOP, text), peer: Case(peer, grid)}
    turns, errors = Turns((CHOP, peer)), []

    def work(case: Case) -> None:
        torch.set_num_threads(subject.args.threads)
        turns.wait()
        try:
            subject.rounded(case)
        except BaseException as error:
            errors.append(error)
        finally:
            turns.leave(is_done=True)

    with ExitStack() as stack:
        for hook in hooks(turns):
            stack.enter_context(hook)
        threads = [threading.Thread(target=work, args=(c,), name=n) for n, c in cases.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    ratio = paired_ratio(turns.seconds[CHOP], turns.seconds[peer])
    medians = {n: torch.tensor(x).median().item() for n, x in turns.seconds.items()}
    return {
        "bits": name,
        "beside": peer,
        "pairs": str(len(turns.seconds[CHOP])),
        "chop": format_seconds(medians[CHOP]),
        "auto-round": format_seconds(medians[peer]),
        "chop relative to auto-round": f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})",
    }


def main() -> None:
    """Prints a line for each pair of tools, and a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder of a decoder")
    parser.add_argument("--data", type=Path, required=True, help="folder with train and test texts")
    parser.add_argument("--blocks", type=int, default=3, help="that are rounded, the first ones")
    parser.add_argument("--rows", type=int, default=16, help="windows of training text")
    parser.add_argument("--row-tokens", type=int, default=128, help="of a window")
    parser.add_argument("--steps", type=int, default=8, help="of learning, for each block")
    parser.add_argument("--batch-size", type=int, default=4, help="rows of a step")
    parser.add_argument("--grids", default=",".join(GRIDS))
    parser.add_argument("--peers", default="auto-round,auto-round/float32")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.judge, args.tokens = 1, args.row_tokens
    subject, rows = Subject(args), []
    assert subject.mg is not None  # captured before the threads start
    for name in args.grids.split(","):
        for peer in args.peers.split(","):
            rows.append(measure(subject, name, peer.replace("/", ", ")))
            print(rows[-1], flush=True)
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
