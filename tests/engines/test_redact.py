"""What is hidden from evidence, and what must stay readable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.engines.redact import HIDDEN, is_secret_name, redact, redact_argv

SECRET = "s3cr3tValue99"


@pytest.mark.parametrize(
    "text",
    [
        f"python -m sglang.launch_server --api-key {SECRET} --port 1",
        f"--api-key={SECRET}",
        f'--admin-api-key "{SECRET} more" --port 1',
        f"vllm serve m --api-key first {SECRET} third --port 1",
        f"python\0-m\0x\0--api-key\0{SECRET}\0--port\0001",
        f"server_args=ServerArgs(model_path='m', api_key='{SECRET}', port=1)",
        f'{{"api_key": "{SECRET}", "port": 1}}',
        f"non-default args: {{'api_key': ['{SECRET}', 'b'], 'port': 1}}",
        f"['--model', 'm', '--hf-token', '{SECRET}']",
        f"Authorization: Bearer {SECRET}",
        f"curl -H 'Authorization: Bearer {SECRET}'",
        f"headers={{'Authorization': 'Bearer {SECRET}'}}",
        f"HF_TOKEN={SECRET} python x",
        f"Environment=AWS_SECRET_ACCESS_KEY={SECRET}",
        f"VLLM_API_KEY={SECRET}",
        f"HUGGING_FACE_HUB_TOKEN: {SECRET}",
        f"password: {SECRET}",
        f"https://user:{SECRET}@host/x",
        f"token hf_{SECRET}abc is wrong",
        f"key sk-{SECRET}abc",
    ],
)
def test_secrets_are_hidden(text: str) -> None:
    hidden = redact(text)
    assert SECRET not in hidden
    assert HIDDEN in hidden
    assert redact(hidden) == hidden


@pytest.mark.parametrize(
    "text",
    [
        "server_args=ServerArgs(api_key=None, tokenizer_path='/models/m', admin_api_key=None)",
        "--max-total-tokens 128 --speculative-num-draft-tokens 8 --tokenizer-path /m",
        "max_total_num_tokens=8192, chunked_prefill_size=2048",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "error: argument --api-key: expected one argument",
        "prompt_tokens: 5, completion_tokens: 8",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redact(text) == text


@given(st.text())
def test_redacting_twice_is_redacting_once(text: str) -> None:
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("api-key", True),
        ("admin-api-key", True),
        ("control-plane-api-keys", True),
        ("hf-token", True),
        ("HF_TOKEN", True),
        ("ssl-keyfile-password", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("ssl-keyfile", False),
        ("tokenizer-path", False),
        ("speculative-token-map", False),
        ("allow-credentials", False),
        ("max-tokens", False),
    ],
)
def test_names_of_secrets(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret


@pytest.mark.parametrize("piece", ["_", "a_", "-", "--a-", '"', "api_key='\\", "a://", "eyJ", "a", "--api-key v "])
def test_long_hostile_text_ends_soon(piece: str) -> None:
    """A pattern that backtracks takes hours on these; a good one milliseconds."""
    assert redact(piece * (65536 // len(piece)))


@pytest.mark.parametrize(
    "argv",
    [
        ("python3", "x.py", "--api-key", SECRET, "--port", "1"),
        ("python3", "x.py", "--api-key", f"-{SECRET}", "--port", "1"),
        ("python3", "x.py", "--password", f"two {SECRET} words", "--port", "1"),
        ("python3", "x.py", f"--api-key={SECRET}"),
        ("vllm", "serve", "m", "--api-key", "first", SECRET),
        ("env", f"HF_TOKEN={SECRET}", "python3", "x.py"),
        ("curl", "-H", f"Authorization: Bearer {SECRET}", "http://x"),
        (f"python3 x.py --api-key {SECRET}",),  # a title that was set by hand
        ("python3", "--api-key", SECRET * 2000),
        ("x" * 8000, "--api-key", SECRET * 100),
    ],
)
@pytest.mark.parametrize("room", [30, 120, 4000])
def test_no_secret_of_a_command_line_is_shown_however_it_is_cut(argv: tuple[str, ...], room: int) -> None:
    shown = redact_argv(argv, room)
    assert SECRET[:6] not in shown
    assert len(shown) <= room
    assert redact_argv((shown,), room) == shown


def test_a_command_line_without_a_secret_is_shown_as_it_is() -> None:
    argv = ("/usr/bin/python3", "-m", "sglang.launch_server", "--tokenizer-path", "/m", "--max-total-tokens", "9")
    assert redact_argv(argv, 400) == " ".join(argv)
    assert redact_argv(("a\n\x1b[2J", "b" * 1_000_000), 40) == "a \x1b[2J " + "b" * 31 + " …"
