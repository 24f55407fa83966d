"""vLLM 0.33.0 as it looks from outside: its start lines in order, its processes, its ways to die."""

from __future__ import annotations

from daemon.sim.engine import Engine, Step
from daemon.sim.processes import Reply, SimProcess
from daemon.sim.serving import refusal, reply

_USAGE = "usage: vllm [-h] [-v] {chat,complete,serve,launch,bench,collect-env,run-batch} ..."
_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class Vllm(Engine):
    """An API server that binds first, an engine core below it and workers below that; nothing is tethered to it."""

    kind = "vllm"
    swallowed = "RuntimeError"
    core: SimProcess

    def begin(self) -> None:
        flags = self.flags
        self.model = flags.text("model", default=flags.words[1] if len(flags.words) > 1 else "Qwen/Qwen3-0.6B")
        self.api.model = self.model
        wrong = [name for name in flags.by_name if name.startswith(("bad-flag", "no-such"))]
        if wrong or flags.words[:1] != ["serve"]:
            said = (
                f"unrecognized arguments: --{wrong[0]} {flags.by_name[wrong[0]]}".rstrip()
                if wrong
                else "invalid choice"
            )
            self.later(0.1, lambda: self._refuse(said))
            return
        self.port = flags.number("port", default=8000)
        self.size = flags.number("tensor-parallel-size", "tp", default=1)
        self.core = self.main  # until it is forked, a crash is the launcher's own
        self.later(0.05, self._fork)

    def _refuse(self, said: str) -> None:
        self.say(f"{_USAGE}\nvllm: error: {said}")
        self.leave(2)

    def log(self, text: str, process: str = "APIServer", level: str = "INFO", where: str = "launcher.py:46") -> None:
        pid = self.main.pid if process == "APIServer" else self.core.pid
        self.say(f"({process} pid={pid}) {level} {self.machine.wall():%m-%d %H:%M:%S} [{where}] {text}")

    def _fork(self) -> None:
        self.log(f"non-default args: {{'model_tag': '{self.model}', 'port': {self.port}}}", where="utils.py:230")
        if self.machine.processes.holder_of(self.port) is not None:
            self.log("Traceback (most recent call last):", level="ERROR")
            self.say("OSError: [Errno 98] Address already in use")
            self.leave(1)
            return
        self.log("Resolved architecture: LlamaForCausalLM", where="model.py:600")
        self.core = self.fork("VLLM::EngineCore", "the engine core")
        self.core.on_end = self.rank_ends(self.core)
        self.log("Initializing a V1 LLM engine (v0.33.0) with config: ...", "EngineCore", where="core.py:105")
        if self.size == 1:
            self.ranks = [self.core]
        for number in range(self.size if self.size > 1 else 0):
            rank = self.fork(f"VLLM::Worker_TP{number}", f"rank {number}", parent=self.core)
            rank.tethered, rank.on_end = True, self.rank_ends(rank)
            self.ranks.append(rank)
        self.main.deaf = self.switches.deaf
        self.run_load(self._steps())

    def _steps(self) -> list[Step]:
        steps: list[Step] = [(0.02, self._first), (0.05, self._model)]
        steps += [(0.1 + 0.15 * shard, lambda shard=shard: self._weights(shard)) for shard in range(5)]  # type: ignore[misc]
        return [*steps, (0.8, self._cache), (0.95, self._graphs), (1.0, self._listen)]

    def _first(self) -> None:
        self._grow(0.004)

    def _grow(self, part: float) -> bool:
        wrong = self.grow(part)
        if wrong:
            self.crash(wrong)
        return not wrong

    def _model(self) -> None:
        self.log("Starting to load model ...", self._teller, where="gpu_model_runner.py:3467")

    @property
    def _teller(self) -> str:
        return "EngineCore" if self.size == 1 else "Worker_TP0"

    def _weights(self, shard: int) -> None:
        """Its bar ends each update with a newline: the journal shows every step."""
        if not self._grow(0.02 + 0.08 * shard):
            return
        if shard == 2 and self.switches.load_fail:
            self.crash(self.switches.load_fail)
            return
        label = "Loading safetensors checkpoint shards"
        self.say(f"({self._teller} pid={self.ranks[0].pid}) {label}: {25 * shard:3d}% Completed | {shard}/4 "
                 f"[00:{shard:02d}<00:00, 1.00it/s]")  # fmt: skip
        if shard == 4:
            self.log(
                f"Loading weights took {self.machine.load_s:.2f} seconds", self._teller, where="default_loader.py:430"
            )
            self.log(f"Model loading took 20.31 GiB memory and {self.machine.load_s:.6f} seconds", self._teller,
                     where="gpu_model_runner.py:3502")  # fmt: skip

    def _cache(self) -> None:
        if self._grow(0.97):
            self.log("Available KV cache memory: 97.12 GiB", self._teller, where="gpu_worker.py:440")
            self.log("GPU KV cache size: 1,048,576 tokens", self._teller, where="kv_cache_utils.py:1400")

    def _graphs(self) -> None:
        if self._grow(1.0):
            self.log(
                "Graph capturing finished in 1 secs, took 0.30 GiB", self._teller, where="gpu_model_runner.py:4400"
            )

    def _listen(self) -> None:
        self.log(f"Starting vLLM server on http://{self.api.host}:{self.port}", where="launcher.py:41")
        if not self.bind():
            self.say("OSError: [Errno 98] Address already in use")
            self.leave(1)
            return
        self.log("Application startup complete.", where="on.py:62")
        self.api.status = "up"
        self.main.on_term = self._drain

    def _drain(self) -> None:
        self.main.on_term = lambda: None
        self.later(0.05 + self.switches.linger_s, self._gone)

    def _gone(self) -> None:
        self.api.status = "dead"
        self.log("[shutdown] API server: shutdown triggered")
        self.leave(0)

    def crash(self, text: str) -> None:
        """The core fails: while loading the server exits 1, later it goes on for a moment and exits 0."""
        self.log("EngineCore encountered a fatal error.", "EngineCore", "ERROR", "core.py:1100")
        self.say(f"Traceback (most recent call last):\n{text}")
        if self.api.status == "up":
            self._core_died()
            return
        self.log("Traceback (most recent call last):", level="ERROR")
        self.say("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}")
        self.leave(1)

    def crash_on_request(self) -> Reply:
        super().crash_on_request()
        return reply(500, refusal(_DEAD, "InternalServerError", 500))

    def _core_died(self) -> None:
        self.api.status = "dead"
        processes = self.machine.processes
        for process in reversed(processes.tree(self.core)):
            process.on_end = None
            processes.signal(process, "KILL")
        self.log(f"vllm.v1.engine.exceptions.EngineDeadError: {_DEAD}", level="ERROR", where="async_llm.py:906")
        self.later(0.4, self._shut_down)

    def _shut_down(self) -> None:
        self.say("INFO:     Shutting down")
        self.leave(0)

    def lose_rank(self, process: SimProcess) -> None:
        if process is not self.core:
            said = "died unexpectedly (exit code: None), shutting down executor."
            name = f"VllmWorker-{self.ranks.index(process)}"
            self.log(f"Worker proc {name} {said}", "EngineCore", "ERROR", "multiproc_executor.py:315")
        if self.api.status == "up":
            self._core_died()
        else:
            self.crash("RuntimeError: a worker died")
