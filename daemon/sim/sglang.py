"""SGLang 0.5.23 as it looks from outside: its start lines in order, its processes, its ways to die."""

from __future__ import annotations

from daemon.sim.engine import Engine, Step
from daemon.sim.processes import SimProcess

_USAGE = "usage: sglang serve [-h] --model-path MODEL_PATH\n" + "".join(
    f"                    [--some-option-{n} VALUE]\n" for n in range(474)
)
_TRACE = (
    "Scheduler hit an exception: Traceback (most recent call last):\n"
    '  File "/opt/venv/lib/python3.11/site-packages/sglang/srt/managers/scheduler.py", line 3001, in '
    "run_scheduler_process\n    scheduler.event_loop_overlap()\n"
)
_WEIGHTS_GIB = 20.31


class Sglang(Engine):
    """A launcher with HTTP, a scheduler for each rank and a detokenizer, all tethered to it."""

    kind = "sglang"

    def begin(self) -> None:
        flags = self.flags
        self.model = flags.text("model-path", "model", default=next(iter(flags.words), ""))
        self.api.model = self.model
        wrong = [name for name in flags.by_name if name.startswith(("bad-flag", "no-such")) or "_" in name]
        if wrong or not self.model:
            said = f"unrecognized arguments: --{wrong[0]} {flags.by_name[wrong[0]]}".rstrip() if wrong else (
                "the following arguments are required: --model-path/--model"
            )  # fmt: skip
            self.later(0.1, lambda: self._refuse(said))
            return
        self.port = flags.number("port", default=30000)
        self.size = flags.number("tp-size", "tensor-parallel-size", "tp", default=1)
        self.later(0.05, self._fork)

    def _refuse(self, said: str) -> None:
        self.say(f"{_USAGE}sglang serve: error: {said}")
        self.leave(2)

    def log(self, text: str, rank: int | None = None) -> None:
        tag = f" TP{rank}" if rank is not None and self.size > 1 else ""
        self.say(f"[{self.machine.wall():%Y-%m-%d %H:%M:%S}{tag}] {text}")

    def both(self, text: str) -> None:
        for rank in range(self.size):
            self.log(text, rank)

    def _fork(self) -> None:
        self.log(f"server_args=ServerArgs(model_path='{self.model}', port={self.port}, tp_size={self.size})")
        for number in range(self.size):
            rank = self.fork("sglang::scheduler" + (f"_TP{number}" if self.size > 1 else ""), f"rank {number}")
            rank.tethered, rank.on_end = True, self.rank_ends(rank)
            self.ranks.append(rank)
        helper = self.fork("sglang::detokenizer", "the detokenizer")
        helper.tethered = True
        self.helpers.append(helper)
        self.main.deaf = self.switches.deaf
        self.run_load(self._steps())

    def _steps(self) -> list[Step]:
        steps: list[Step] = [(0.02, self._distributed)]
        steps += [(0.1 + 0.15 * shard, lambda shard=shard: self._weights(shard)) for shard in range(5)]  # type: ignore[misc]
        return [*steps, (0.8, self._pool), (0.95, self._graphs), (1.0, self._listen)]

    def _take(self, part: float) -> bool:
        wrong = self.grow(part)
        if wrong:
            self.crash(wrong)
        return not wrong

    def _distributed(self) -> None:
        if self._take(0.004):
            self.both("Init torch distributed begin.")
            self.both("Init torch distributed ends. elapsed=0.50 s, mem usage=0.29 GB")
            self.both("Load weight begin. avail mem=138.72 GB")

    def _weights(self, shard: int) -> None:
        """The bar ends its updates with CR: the journal gets it as one line when it closes."""
        if not self._take(0.02 + 0.08 * shard):
            return
        if shard == 2 and self.switches.load_fail:
            self.crash(self.switches.load_fail)
        elif shard == 4:
            label = "Multi-thread loading shards"
            self.say("\r".join(
                f"{label}: {25 * done:3d}% Completed | {done}/4 [00:{done:02d}<00:00, 1.00it/s]" for done in range(5)
            ))  # fmt: skip
            self.both(f"Load weight end. elapsed={self.machine.load_s:.2f} s, type=LlamaForCausalLM, "
                      f"dtype=torch.bfloat16, avail mem=118.41 GB, mem usage={_WEIGHTS_GIB} GB.")  # fmt: skip

    def _pool(self) -> None:
        if self._take(0.96):
            self.both("KV Cache is allocated. #tokens: 1048576, K size: 40.00 GB, V size: 40.00 GB")
            self.both("Memory pool end. avail mem=37.81 GB")
            self.both("Capture target decode CUDA graph begin. backend=full, bs=[1, 2, 4, 8], avail mem=37.20 GB")

    def _graphs(self) -> None:
        if not self._take(1.0):
            return
        bars = ((8, 37.10, " 25%|██▌       | 1/4"), (1, 36.90, "100%|██████████| 4/4"))
        self.say(
            "\r" + "\r".join(f"Capturing batches (bs={bs} avail_mem={mem:.2f} GB): {bar}" for bs, mem, bar in bars)
        )
        self.both("Capture target decode CUDA graph end. Time elapsed: 0.10 s. mem usage=0.30 GB. avail mem=36.90 GB.")
        self.log("max_total_num_tokens=1048576, chunked_prefill_size=8192, max_prefill_tokens=16384, "
                 "max_running_requests=64, context_len=32768, available_gpu_mem=36.90 GB", 0)  # fmt: skip

    def _listen(self) -> None:
        for line in (f"Started server process [{self.main.pid}]", "Waiting for application startup.",
                     "Application startup complete."):  # fmt: skip
            self.log(f"INFO:     {line}")
        if not self.bind():
            self.log(f"ERROR:    [Errno 98] error while attempting to bind on address ('{self.api.host}', {self.port})"
                     ": address already in use")  # fmt: skip
            self.leave(3)
            return
        if self.flags.text("disaggregation-mode") == "prefill":
            self.main.ports.setdefault(self.flags.number("disaggregation-bootstrap-port", default=8998), self.api.host)
        self.log(f"INFO:     Uvicorn running on http://{self.api.host}:{self.port} (Press CTRL+C to quit)")
        self.main.on_term = self._drain
        self.later(0.1, self._up)

    def _up(self) -> None:
        self.api.status = "up"
        self.log("The server is fired up and ready to roll!")

    def _drain(self) -> None:
        self.api.status = "draining"
        self.main.on_term = lambda: None
        self.later(0.05 + self.switches.linger_s, self._gone)

    def _gone(self) -> None:
        self.log(f"kill_process_tree called: parent_pid={self.main.pid}, include_parent=False")
        self.leave(0)

    def crash(self, text: str) -> None:
        for line in f"{_TRACE}{text}".split("\n")[:1]:
            self.log(line, 0)
        self.say("\n".join(f"{_TRACE}{text}".split("\n")[1:]))
        self.log("Received sigquit from a child process. It usually means the child failed.")
        self.log(f"kill_process_tree called: parent_pid={self.main.pid}, include_parent=True")
        self.die()

    def lose_rank(self, process: SimProcess) -> None:
        number = self.ranks.index(process)
        self.later(0.9, lambda: self._lost(number, process.pid))

    def _lost(self, number: int, pid: int) -> None:
        self.log(
            f"Subprocess scheduler_{number} (pid={pid}) crashed with exit code -9. Triggering SIGQUIT for cleanup..."
        )
        self.log("Received sigquit from a child process. It usually means the child failed.")
        self.die()
