"""Secrets planted wherever a look can meet them never reach the file; what is left can be replayed all the same."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from daemon.probes.process import arguments, lines_of_files, pairs
from daemon.probes.report import Section
from daemon.recording.answer import answer_of
from daemon.recording.form import RecordingForm
from daemon.recording.keep import recording_json

pytestmark = pytest.mark.strays
KEY, TOKEN, PASSWORD, BARE = "k3y-Zq81-secret", "hf_AbCdEfGhIjKlMnOp", "p4ss:w0rd!", "unnamed-Value-77"
SECRETS = (KEY, TOKEN, "w0rd!", BARE)


def proc(pid: int, *argv: bytes) -> bytes:
    lines = b"".join(word + b"\0" for word in argv).split(b"\n")
    return b"".join(b"/proc/%d/cmdline\0" % pid + line + b"\n" for line in lines)


def kept(**sections: bytes) -> dict[str, Any]:
    made = {name: Section(name, 0, 1, data) for name, data in sections.items()}
    knows = {"manifests": [{"kind": "ServingSpec", "spec": {"args": {"api-key": BARE}, "env": {"HF_TOKEN": TOKEN}}}]}
    return recording_json("a", made, complete=True, helper=3, head={}, knows=knows)


def everything(document: dict[str, Any]) -> str:
    """The file's text, what is base64 in it decoded."""
    raw = [base64.b64decode(one["base64"]) for one in document["sections"].values() if "base64" in one]
    return json.dumps(document, ensure_ascii=False) + b"".join(raw).decode("utf-8", "replace")


def data(document: dict[str, Any], name: str) -> bytes:
    one = document["sections"][name]
    return base64.b64decode(one["base64"]) if "base64" in one else one["output"].encode()


PLACES = {
    "a flag and its value": {"processes": proc(5, b"vllm", b"serve", b"--api-key", KEY.encode(), b"--port", b"30000")},
    "a flag with several": {"processes": proc(5, b"vllm", b"--api-key", KEY.encode(), TOKEN.encode(), b"--port", b"1")},
    "a flag and its value in one": {"processes": proc(5, b"sglang", b"--api-key=" + KEY.encode(), b"--tp", b"2")},
    "a flag before a line break": {"processes": proc(5, b"x", b"--api-key", b"a\n" + KEY.encode(), b"--tp", b"2")},
    "an open quote": {"processes": proc(5, b"x", b"--api-key", b'"' + KEY.encode()) + proc(6, b'y"', b"z")},
    "bytes that are no text": {"processes": proc(5, b"x\xff\xfe", b"--api-key", KEY.encode())},
    "a token anywhere": {"processes": proc(5, b"curl", b"-H", b"Authorization: Bearer " + KEY.encode())},
    "a password in a URL": {"processes": proc(5, b"x", b"--url", f"https://me:{PASSWORD}@hub".encode())},
    "an environment": {"environ": b"/proc/5/environ\0HF_TOKEN=" + KEY.encode() + b"\0/proc/5/environ\0A=b\0"},
    "an environment's value with blanks": {"environ": b"/proc/5/environ\0HF_TOKEN=one two " + KEY.encode() + b"\0"},
    "blanks in what systemd has loaded": {
        "loaded": b'= u.service\n{"type":"as","data":["HF_TOKEN=one two ' + KEY.encode() + b'","A=b"]}\n'
    },
    "an environment's URL": {"environ": f"/proc/5/environ\0PROXY=http://u:{PASSWORD}@p:1\0".encode()},
    "a unit file": {"texts": b"/x\0[Service]\nEnvironment=API_KEY=" + KEY.encode() + b" A=b\nNice=5\n\0"},
    "a unit file's ExecStart": {"texts": b"/x\0[Service]\nExecStart=/v --api-key " + KEY.encode() + b" --tp 2\n\0"},
    "a continued line": {"texts": b"/x\0[Service]\nExecStart=/v --api-key \\\n  " + KEY.encode() + b" \\\n --tp 2\n\0"},
    "quotes in a unit file": {"texts": b'/x\0[Service]\nEnvironment="HF_TOKEN=' + KEY.encode() + b'"\n\0'},
    "what systemd has loaded": {
        "loaded": b'= u.service\n{"type":"a(sasbttttuii)","data":[["/v",["/v","--api-key","'
        + KEY.encode()
        + b'"],false,0,0,0,0,0,0,0]]}\n{"type":"as","data":["HF_TOKEN='
        + TOKEN.encode()
        + b'"]}\n'
    },
    "a name on a card": {"apps": b"GPU-1, 5, /x --api-key " + KEY.encode() + b", 818\nGPU-1, 6, y, 7\n"},
    "a hold's text": {"hold": b"ask me, password: " + KEY.encode() + b"\n"},
    "where no name tells": {
        "processes": proc(5, b"x", b"--api-key", KEY.encode()),
        "units": b"Id=u.service\nStatusText=serving with " + KEY.encode() + b"\n",
    },
    "what the manifest calls a secret": {"processes": proc(5, b"x", b"-k", BARE.encode())},
    "a section of a later helper": {"kernel": b"x: token=" + KEY.encode() + b"\n"},
}


@pytest.mark.parametrize("place", PLACES)
def test_a_planted_secret_is_not_in_the_file_and_the_rest_is(place: str) -> None:
    before = PLACES[place]
    document = kept(**before)
    text = everything(document)
    assert not [secret for secret in SECRETS if secret in text]
    assert "[redacted]" in text
    assert document["redacted"] >= 1
    for name, raw in before.items():
        after = data(document, name)
        lines = 1 if place == "a flag before a line break" else 0  # two lines of one word, each with its file's name
        assert after.count(b"\n") == raw.count(b"\n") - lines
        assert after.count(b"\0") == raw.count(b"\0") - lines
        for word in (b"--tp", b"--port", b"Nice=5", b", 818", b"A=b", b"GPU-1, 6, y, 7"):
            assert (word in after) == (word in raw), after
    answer = answer_of(RecordingForm.model_validate({**document, "knows": {}}))
    assert {name: section.data for name, section in answer.sections.items() if name in before} == {  # type: ignore[union-attr]
        name: data(document, name) for name in before
    }


def test_as_many_arguments_are_left_as_there_were() -> None:
    raw = proc(5, b"vllm", b"--api-key", b"a", b'b"', b"--tp", b"2") + proc(6, b'it"s', b"fine")
    after = lines_of_files(data(kept(processes=raw), "processes"))
    assert arguments(after[b"/proc/5/cmdline"]) == ("vllm", "--api-key", "[redacted]", "[redacted]", "--tp", "2")
    assert arguments(after[b"/proc/6/cmdline"]) == ('it"s', "fine")


def test_a_short_secret_is_hidden_where_it_stands_and_nowhere_else() -> None:
    document = kept(
        environ=b"/proc/5/environ\0HF_TOKEN=abc\0/proc/5/environ\0NAME=abcdef\0", meta=b"hostname=abc\nboot_id=abc\n"
    )
    assert dict(pairs(data(document, "environ"))) == {b"/proc/5/environ": b"NAME=abcdef"}
    assert b"HF_TOKEN=[redacted]" in data(document, "environ")
    assert data(document, "meta") == b"hostname=abc\nboot_id=abc\n"


def test_a_file_that_was_written_by_us_is_still_ours_when_a_secret_was_taken_out_of_it() -> None:
    import hashlib

    text = b"[Service]\nEnvironment=API_KEY=" + KEY.encode() + b"\n"
    ours = {"spec": "u", "writtenSha256": hashlib.sha256(text).hexdigest()}
    made = {"texts": Section("texts", 0, 1, b"/x\0" + text + b"\0")}
    document = recording_json("a", made, complete=True, helper=3, head={}, knows={"instances": [ours]})
    hidden = data(document, "texts").split(b"\0")[1]
    assert hidden != text
    assert document["knows"]["instances"][0]["writtenSha256"] == hashlib.sha256(hidden).hexdigest()
