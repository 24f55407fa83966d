"""Rules for speculative decoding, in each engine's own terms. For `check`.

Sources: SGLang 0.5.23 and vLLM 0.33.0 argument resolution, and reports of launches that failed late or misleadingly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from daemon.engines.findings import Finding, Seat, refuse, warn
from daemon.engines.sglang import DRAFT_TOKENS, PP, block_flag
from daemon.engines.vllm import SPECULATIVE, speculative_json

_TRIPLE = (
    ("numSteps", "--speculative-num-steps"),
    ("eagleTopk", "--speculative-eagle-topk"),
    ("numDraftTokens", DRAFT_TOKENS),
)
# families whose checkpoints bring draft weights, by the folder's name
_BUNDLED = re.compile(r"(?i)deepseek|glm-?[45]|bailing|\bling\b|longcat|mimo|qwen3-next")


@dataclass(frozen=True, slots=True)
class _Asked:
    """SGLang's settings as the server will get them; None is not given."""

    algorithm: str
    draft: str | None
    steps: int | None
    topk: int | None
    tokens: int | None
    block: int | None
    window: int | None


def speculative_findings(seat: Seat) -> Iterator[Finding]:
    """Everything wrong with the speculative settings of one role."""
    if seat.role == "router":
        return
    if seat.view.engine.name == "vllm":
        yield from _vllm_findings(seat)
    elif seat.view.engine.name == "sglang":
        asked = _asked(seat)
        if asked is not None:
            yield from _sglang_findings(seat, asked)


def _asked(seat: Seat) -> _Asked | None:
    wanted = seat.view.speculative
    entry = seat.given("--speculative-algorithm")
    if entry is None and wanted is None:
        return None
    draft = seat.given("--speculative-draft-model-path", "--speculative-draft-model")
    dflash = wanted is None or wanted.algorithm.upper() == "DFLASH"
    block = seat.number(wanted.block_size if wanted else None, "--speculative-dflash-block-size" if dflash else "")
    tokens = seat.number(wanted.num_draft_tokens if wanted else None, DRAFT_TOKENS)
    if tokens is None and wanted is not None and block_flag(wanted) == DRAFT_TOKENS:
        tokens = wanted.block_size
    return _Asked(
        algorithm=(str(entry[1]) if entry is not None else wanted.algorithm if wanted else "").upper(),
        draft=str(draft[1]) if draft is not None else wanted.draft_model if wanted else None,
        steps=seat.number(wanted.num_steps if wanted else None, "--speculative-num-steps"),
        topk=seat.number(wanted.eagle_topk if wanted else None, "--speculative-eagle-topk"),
        tokens=tokens,
        block=block,
        window=seat.number(wanted.draft_window if wanted else None, "--speculative-draft-window-size"),
    )


def _sglang_findings(seat: Seat, asked: _Asked) -> Iterator[Finding]:
    if asked.draft is None:
        yield from _missing_draft(seat, asked.algorithm)
    if asked.algorithm in ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE"):
        yield from _three_numbers(seat, asked)
    elif asked.topk is not None and asked.topk > 1 and asked.algorithm in ("DFLASH", "DSPARK", "NGRAM"):
        yield warn(_at(seat, "eagleTopk"), f"{asked.algorithm} does not use eagleTopk")
    yield from _block_findings(seat, asked)


def _at(seat: Seat, field: str) -> str:
    return seat.path(f"speculative.{field}") if seat.view.speculative is not None else seat.path("args")


def _missing_draft(seat: Seat, algorithm: str) -> Iterator[Finding]:
    path = _at(seat, "draftModel")
    model = seat.view.model.path if seat.view.model is not None else ""
    if algorithm == "EAGLE" and _BUNDLED.search(model):
        yield warn(path, "no draft model: right only if the target's own checkpoint holds draft weights")
    elif algorithm in ("EAGLE", "EAGLE3"):
        hint = "give draftModel; for a checkpoint with draft weights of its own the algorithm is NEXTN"
        yield refuse(path, f"{algorithm} needs a draft model, else the target is loaded twice as its own draft", hint)
    elif algorithm in ("DFLASH", "STANDALONE"):
        yield refuse(path, f"{algorithm} needs a draft model", "give draftModel")
    elif algorithm == "DDTREE":
        yield warn(path, f"{algorithm} is usually given a draft model")


def _three_numbers(seat: Seat, asked: _Asked) -> Iterator[Finding]:
    values = {"numSteps": asked.steps, "eagleTopk": asked.topk, "numDraftTokens": asked.tokens}
    missing = [
        name for name, flag in _TRIPLE if values[name] is None and seat.given(flag) is None
    ]  # one in args that is no number is not missing
    if 0 < len(missing) < 3:
        message = "numSteps, eagleTopk and numDraftTokens belong together: all three or none"
        yield refuse(_at(seat, missing[0]), message, f"also give {' and '.join(missing)}")
    elif len(missing) == 3:
        yield warn(
            _at(seat, "numSteps"), "numSteps, eagleTopk and numDraftTokens are left to the engine: versions differ"
        )
    elif asked.topk == 1 and asked.steps is not None and asked.tokens not in (None, asked.steps + 1):
        message = f"with eagleTopk 1 the engine changes numDraftTokens {asked.tokens} to {asked.steps + 1}"
        yield warn(_at(seat, "numDraftTokens"), message, f"write {asked.steps + 1}")


def _block_findings(seat: Seat, asked: _Asked) -> Iterator[Finding]:
    if None not in (asked.block, asked.tokens) and asked.block != asked.tokens and asked.algorithm != "DSPARK":
        message = f"blockSize {asked.block} and numDraftTokens {asked.tokens} are two names for one number"
        yield refuse(_at(seat, "blockSize"), message, "give one of them")
    block = asked.block if asked.block is not None else asked.tokens
    if asked.window is not None and block is not None and asked.window < block:
        yield refuse(_at(seat, "draftWindow"), f"draftWindow {asked.window} is below the block of {block}")
    if asked.algorithm == "DFLASH" and (seat.number(seat.view.parallelism.pipeline, *PP) or 1) > 1:
        yield refuse(seat.path("parallelism.pipeline"), "DFLASH works only with pipeline 1")


def _vllm_findings(seat: Seat) -> Iterator[Finding]:
    wanted = seat.view.speculative
    entry = seat.given(SPECULATIVE)
    if entry is not None and "." in entry[0]:
        return  # put together by the engine from dotted flags
    if entry is None and wanted is not None:
        for field, value in (("eagleTopk", wanted.eagle_topk), ("draftWindow", wanted.draft_window)):
            if value is not None:
                yield refuse(seat.path(f"speculative.{field}"), "vLLM has no such setting", "leave it out")
        yield from _vllm_config(seat, "speculative", speculative_json(wanted), wanted.block_size)
    elif entry is not None:
        yield from _vllm_config(seat, f"args.{entry[0]}", str(entry[1]), None)


def _vllm_config(seat: Seat, field: str, text: str, block: int | None) -> Iterator[Finding]:
    path = seat.path(field)
    try:
        config = json.loads(text)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        yield refuse(path, "is not a JSON object", 'like {"method":"ngram","num_speculative_tokens":4}')
        return
    method, model, tokens = (config.get(key) for key in ("method", "model", "num_speculative_tokens"))
    if model is None and method in ("dflash", "eagle", "eagle3", "draft_model"):
        yield refuse(path, f"method {method} needs a draft model", "give draftModel")
    if method in ("nextn", "standalone"):
        meant = {"nextn": "mtp", "standalone": "draft_model"}[str(method)]
        yield refuse(path, f"vLLM has no method {method}", f"its name there is {meant}")
    if tokens is None and method in ("ngram", "draft_model", "dflash"):
        yield warn(path, "without numDraftTokens the draft's own config must say how many tokens to propose")
    named = re.search(r"-b(\d+)\b", str(model))
    size = block if block is not None else int(named[1]) if named else None
    if method == "dflash" and size is not None and tokens == size:
        yield warn(path, f"{tokens} proposed tokens for a block of {size}", f"model cards use {size - 1}")
