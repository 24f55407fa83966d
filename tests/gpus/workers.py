"""Torch processes that hold memory of real cards, as an engine's workers do. Run by `strays.py`; imports torch only.

`workers.py launcher FOLDER MIB`: a launcher that spawns one worker for each of two cards, which join in a process group
and reduce once; the second ignores TERM. `workers.py hold FOLDER NAME CARD MIB`: one process by itself. Each writes
`FOLDER/NAME.pid` once its memory is held.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path


def hold(folder: Path, name: str, card: int, mib: int, rank: int | None = None) -> None:
    """Takes the memory, computes once, says so, and stays."""
    import torch

    if rank == 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    torch.cuda.set_device(card)
    if rank is not None:
        torch.distributed.init_process_group("nccl", init_method="tcp://127.0.0.1:29511", rank=rank, world_size=2)
        torch.distributed.all_reduce(torch.ones(1024, device="cuda"))
    kept = torch.empty(mib << 20, dtype=torch.uint8, device="cuda")
    kept.zero_()
    torch.cuda.synchronize()
    if rank is None:
        Path("/proc/self/comm").write_text("sglang::schedul", encoding="ascii")
    (folder / f"{name}.pid").write_text(str(os.getpid()), encoding="ascii")
    while True:
        time.sleep(60)


def launch(folder: Path, mib: int) -> None:
    """As engines do: spawn, then wait for the workers."""
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=hold, args=(folder, f"worker{rank}", rank, mib, rank)) for rank in (0, 1)]
    for worker in workers:
        worker.start()
    (folder / "launcher.pid").write_text(str(os.getpid()), encoding="ascii")
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    if sys.argv[1] == "launcher":
        launch(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        hold(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
