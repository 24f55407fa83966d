"""The HTTP side of an engine: health, models and generations, as SGLang 0.5.23 and vLLM 0.33.0 answer them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from daemon.sim.processes import Reply, Request

if TYPE_CHECKING:
    from daemon.sim.engine import Flags, Switches

WORDS = " the quick brown fox jumps over the lazy dog"
GENERATIONS = ("/v1/completions", "/v1/chat/completions", "/generate", "/v1/embeddings", "/v1/score")
_HEALTH = ("/health", "/health_generate", "/ready", "/ping")
Generate = Callable[[int], "int | Reply"]


def reply(status: int, value: object) -> Reply:
    return Reply(status, json.dumps(value).encode())


def refusal(message: str, kind: str, code: int) -> dict[str, Any]:
    said = {"message": message, "type": kind, "param": None, "code": code}
    return {"object": "error", **said, "error": said}


class Api:
    """What the endpoints answer from. `status` is starting, up, draining or dead."""

    def __init__(self, engine: str, flags: Flags, switches: Switches) -> None:
        self.engine, self.flags, self.switches = engine, flags, switches
        self.model = ""
        self.host = flags.text("host", default="127.0.0.1" if engine == "sglang" else "0.0.0.0")  # noqa: S104
        self.context = flags.number("context-length", "max-model-len", default=32768)
        self.key = flags.text("api-key")
        self.alone = flags.text("disaggregation-mode") in ("", "null")
        self.status = "starting"

    @property
    def name(self) -> str:
        return self.switches.served_name or self.flags.text("served-model-name", default=self.model)

    def answer(self, request: Request, generate: Generate) -> Reply:
        path = request.path.split("?")[0]
        if not self._allowed(path, request):
            return reply(401, {"error": "Unauthorized"})
        if request.method == "POST":
            return self._post(path, request, generate)
        return self._get(path)

    def _allowed(self, path: str, request: Request) -> bool:
        guarded = path.startswith("/v1") if self.engine == "vllm" else not path.startswith(("/health", "/metrics"))
        return not self.key or not guarded or request.headers.get("authorization") == f"Bearer {self.key}"

    def _get(self, path: str) -> Reply:
        if path in _HEALTH:
            return Reply(self.switches.health_status or (200 if self.status == "up" else 503))
        if path == "/v1/models":
            root = self.name if self.engine == "sglang" else self.model
            entry = {"id": self.name, "object": "model", "created": 1, "owned_by": self.engine, "root": root,
                     "parent": None, "max_model_len": self.context}  # fmt: skip
            return reply(200, {"object": "list", "data": [entry]})
        return reply(404, {"detail": "Not Found"})

    def _post(self, path: str, request: Request, generate: Generate) -> Reply:
        if path not in GENERATIONS:
            return reply(404, {"detail": "Not Found"})
        try:
            body = json.loads(request.body)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return reply(400, refusal("Invalid JSON", "BadRequestError", 400))
        model = body.get("model", self.name)
        if model != self.name:
            return reply(404, refusal(f"The model `{model}` does not exist.", "NotFoundError", 404))
        why = self.switches.refuse
        if not self.alone and "bootstrap_room" not in body:
            why = "Disaggregated request received without bootstrap room id."
        if why:
            return reply(400, refusal(why, "BadRequestError", 400))
        made = generate(int(body.get("max_completion_tokens") or body.get("max_tokens") or 16))
        return made if isinstance(made, Reply) else reply(200, generated(path, self.name, body, made))


def generated(path: str, model: str, body: dict[str, Any], tokens: int) -> dict[str, Any]:
    """A generation of so many tokens in the form of its endpoint."""
    text = (WORDS * (tokens // 9 + 1))[: tokens * 5] if tokens else ""
    asked = body.get("prompt") or body.get("messages") or body.get("text") or body.get("input") or ""
    prompt = len(str(asked)) // 4 + 1
    usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
    if path == "/generate":
        return {"text": text, "meta_info": {"prompt_tokens": prompt, "completion_tokens": tokens}}
    if path in ("/v1/embeddings", "/v1/score"):
        data = [{"object": "embedding", "index": 0, "embedding": [0.1, 0.2, 0.3]}]
        return {
            "object": "list",
            "model": model,
            "data": data,
            "usage": {"prompt_tokens": prompt, "total_tokens": prompt},
        }
    chat = path == "/v1/chat/completions"
    choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "logprobs": None}
    choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    return {"id": "cmpl-sim", "object": "chat.completion" if chat else "text_completion", "created": 1_767_268_800,
            "model": model, "choices": [choice], "usage": usage}  # fmt: skip
