"""systemd's quoting, both ways. The real systemd is asked about the same arguments on the test hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.engines.quoting import SEPARATOR, Unreadable, expand, quote, quote_path, split
from tests.engines.hostile import HOSTILE_ARGS

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@pytest.mark.parametrize("word", HOSTILE_ARGS)
def test_hostile_words_come_back_as_they_were(word: str) -> None:
    assert [expand(one) for one in split(quote(word), relaxed=True)] == [word]
    assert [expand(one) for one in split(quote(f"A={word}"), relaxed=False)] == [f"A={word}"]


@given(st.lists(TEXT))
def test_any_words_come_back_as_they_were(words: list[str]) -> None:
    line = " ".join(map(quote, words))
    assert [expand(one) for one in split(line, relaxed=True)] == words


@given(TEXT)
def test_quoted_text_stays_on_one_line_and_is_never_continued(word: str) -> None:
    quoted = quote(word)
    assert "\n" not in quoted
    assert "\r" not in quoted
    assert not quoted.endswith("\\")


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("a  b\t c", ["a", "b", "c"]),
        ("'single quoted' \"double quoted\"", ["single quoted", "double quoted"]),
        ("pre'fix and'post", ["prefix andpost"]),
        (r"\x41\102\u00e9\U0001f525\s\t", ["ABé🔥 \t"]),
        (r'"\xd0\x96"', ["Ж"]),
        (r"a \; b", ["a", ";", "b"]),
        ("a ; b", ["a", SEPARATOR, "b"]),
        ("';'", [";"]),
        (r"regex\d+", [r"regex\d+"]),
        (r"nul\x00", [r"nul\x00"]),
    ],
)
def test_words_are_read_as_systemd_reads_an_exec_line(written: str, words: list[str]) -> None:
    assert split(written, relaxed=True) == words


@pytest.mark.parametrize("written", ["'open", 'a "open', r"bad\d"])
def test_what_systemd_refuses_is_unreadable(written: str) -> None:
    with pytest.raises(Unreadable):
        split(written, relaxed=False)


@pytest.mark.parametrize(("written", "meant"), [("100%%", "100%"), ("5% off", "5% off"), ("%", "%"), ("%%h", "%h")])
def test_percent_is_undone(written: str, meant: str) -> None:
    assert expand(written) == meant


def test_a_specifier_is_unreadable_since_only_the_host_knows_it() -> None:
    with pytest.raises(Unreadable):
        expand("/run/%n")


@pytest.mark.parametrize(
    ("path", "written"),
    [("/models/a", "/models/a"), ("/my models/50%", '"/my models/50%%"'), ('/a"b\\c', '"/a\\"b\\\\c"')],
)
def test_mount_paths_are_quoted_without_c_escapes(path: str, written: str) -> None:
    assert quote_path(path) == written
