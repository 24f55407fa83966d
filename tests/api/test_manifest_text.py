"""What the manifest reader takes, and that what it writes it reads back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.manifest import MAX_BYTES, ambiguous, path_text, read_json, read_yaml, write_yaml
from daemon.domain.errors import AdmissionError

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
TRICKY = st.sampled_from(
    ["off", "y", "012", "1:30", "1e5", "null", "~", "", "true", "1", "0.5", "<<", "- a", "a: b", "#", "!x"]
)
LEAVES = st.booleans() | st.integers(-(10**17), 10**17) | TEXTS | TRICKY
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=20
)


@given(st.lists(st.dictionaries(TEXTS | TRICKY, TREES, max_size=4), min_size=1, max_size=3), st.booleans())
def test_what_is_written_is_read_back(documents: list[dict[str, Any]], ascii_only: bool) -> None:
    assert read_yaml(write_yaml(documents, ascii_only=ascii_only).encode()) == documents


@given(st.text(max_size=200) | st.text("[]{}:,&*!|>-?'\"\n #a1~", max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (read_yaml, read_json):
        try:
            read(text.encode("utf-8", "surrogatepass"))
        except AdmissionError as error:
            assert error.problems  # noqa: PT017 - either outcome is right


@given(st.text(max_size=30))
def test_ambiguous_never_names_plain_words(text: str) -> None:
    if text.isalpha() and len(text) > 5:
        assert ambiguous(text) is None


def test_canonical_values_stay_what_they_are() -> None:
    text = b"a: 0\nb: -3\nc: 0.85\nd: true\ne: 0.5.23\nf: 0.0.0.0\ng: 60s\nh: 'off'\n"
    expected = {"a": 0, "b": -3, "c": 0.85, "d": True, "e": "0.5.23", "f": "0.0.0.0", "g": "60s", "h": "off"}
    assert read_yaml(text) == [expected]


def test_empty_documents_are_left_out() -> None:
    assert read_yaml(b"---\n---\na: 1\n---\n# nothing\n") == [{"a": 1}]
    assert read_yaml(b"") == []


def test_too_large_a_text_is_refused() -> None:
    with pytest.raises(AdmissionError, match="larger"):
        read_yaml(b" " * (MAX_BYTES + 1))


def test_many_nodes_are_refused() -> None:
    with pytest.raises(AdmissionError, match="more than"):
        read_yaml(b"[" + b"1," * 20_000 + b"1]")
    with pytest.raises(AdmissionError, match="more than"):
        read_json(b"[" + b"1," * 20_000 + b"1]")


def test_path_is_what_a_person_would_write() -> None:
    assert path_text(("spec", "placement", "gpus", 1)) == "spec.placement.gpus[1]"
    assert path_text(("spec", "args", "a b\n")) == 'spec.args["a b\\n"]'
    assert len(path_text(("x" * 100_000,))) < 100
