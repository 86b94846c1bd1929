"""Cuts arriving text into segments, as early as it is safe.

Each decision depends only on the text from the segment's start to a bounded look-ahead, so the
result never depends on where the pieces were cut. Nothing is cut inside a decimal, a thousands
group, an abbreviation, a URL, or between a number and its unit. The first segment may end at a
clause already, so that the first audio comes soon; very short sentences are joined to the next;
very long ones are cut at a clause, then at a word.

English abbreviations come from sentence-stream's rule (initials and short titles) and the list
below, of words that are followed by a capital letter or a number without ending a sentence.
"""

import re
from dataclasses import dataclass

from sentence_stream.sentence_stream import ABBREVIATION_RE

_FINAL = frozenset("。！？｡…")
"""Ends of a sentence that need no look-ahead."""
_MAYBE_FINAL = frozenset(".!?")
"""Ends of a sentence if white space (after closing quotes) follows."""
_CLAUSE = frozenset("，、；：")
_MAYBE_CLAUSE = frozenset(",;:")
_CLOSERS = frozenset("'\")]}’”»*_`）」』】》")
_ABBREVIATIONS = frozenset(
    "dr mr mrs ms prof rev gen col capt lt sgt st mt ft no nos vs etc approx dept est fig inc ltd "
    "co corp jr sr jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur fri "
    "sat sun e.g i.e a.m p.m u.s u.k min max temp avg vol".split()
)
_WORD_BEFORE = re.compile(r"[^\s(\[\"'“‘]*$")
_LIST_NUMBER = re.compile(r"(?:^|\n)\s*\d{1,3}$")
_WIDE = re.compile(r"[⺀-鿿豈-﫿]")

_MIN_WEIGHT = 5
"""A sentence lighter than this is joined to the next."""
_MAX_LENGTH = 1000
"""Characters of a segment at most, whatever they weigh."""


@dataclass(slots=True)
class Segmenter:
    """Feed it pieces, get segments. `segment_chars` and `first_segment_chars` count Latin
    letters; a Chinese character, which takes three times as long to say, counts three."""

    segment_chars: int = 120
    first_segment_chars: int = 20
    _text: str = ""
    _at: int = 0
    _weight: int = 0
    _clause: int = 0
    _space: int = 0
    _started: bool = False

    def feed(self, piece: str) -> list[str]:
        """Takes a piece of text; returns the segments that are decided now."""
        self._text += piece
        return self._scan(at_end=False)

    def finish(self) -> list[str]:
        """The text has ended: returns what is left."""
        segments = self._scan(at_end=True)
        if self._text:
            self._cut(len(self._text), segments)
        return segments

    def _scan(self, *, at_end: bool) -> list[str]:
        segments: list[str] = []
        while self._at < len(self._text):
            verdict = self._boundary(at_end)
            if verdict is None:
                break
            self._step(verdict, segments)
        return segments

    def _step(self, verdict: str, segments: list[str]) -> None:
        """Moves over one character, cutting behind it if the verdict says so."""
        char = self._text[self._at]
        self._at += 1
        self._weight += _weight(char)
        if verdict == "sentence" and self._weight >= _MIN_WEIGHT:
            self._cut(self._at, segments)
        elif verdict in ("sentence", "clause"):
            self._clause = self._at
            if not self._started and self._weight >= self.first_segment_chars:
                self._cut(self._at, segments)
        elif char.isspace() and not self._text[self._at - 2 : self._at - 1].isdigit():
            self._space = self._at
        if self._weight >= self.segment_chars or self._at >= _MAX_LENGTH:
            self._cut_long(segments)

    def _cut_long(self, segments: list[str]) -> None:
        """Cuts an overlong run at its last clause, else its last word, else right here."""
        at = self._clause or self._space
        if at == 0 and self._weight < 2 * self.segment_chars and self._at < _MAX_LENGTH:
            return
        self._cut(at or self._at, segments)

    def _cut(self, at: int, segments: list[str]) -> None:
        segment, self._text = self._text[:at], self._text[at:]
        rest = self._text[: self._at - at]
        self._at = len(rest)
        self._weight = sum(map(_weight, rest))
        self._clause = self._space = 0
        if segment.strip():
            segments.append(segment)
            self._started = True

    def _boundary(self, at_end: bool) -> str | None:
        """What lies behind the character at `_at`: "sentence", "clause", "" or None (not known)."""
        char = self._text[self._at]
        if char == "\n" or char in _FINAL:
            return "sentence"
        if char in _CLAUSE:
            return "clause"
        if char not in _MAYBE_FINAL and char not in _MAYBE_CLAUSE:
            return ""
        after = self._at + 1
        if char in _MAYBE_FINAL:
            while after < len(self._text) and self._text[after] in _CLOSERS:
                after += 1
        if after >= len(self._text):
            if not at_end:
                return None
        elif not self._text[after].isspace() and not (
            # a Chinese sentence may go on without a space
            _WIDE.match(self._text[after]) and char in "!?;,"
        ):
            return ""
        if char in _MAYBE_CLAUSE:
            return "clause"
        if char == "." and self._is_abbreviation():
            return ""
        # closing quotes belong to the sentence; the cut waits until the last of them
        return "sentence" if after == self._at + 1 else self._move_to(after - 1)

    def _move_to(self, last: int) -> str:
        """Goes over closing quotes, so that the cut comes behind character `last`."""
        while self._at < last:
            self._weight += _weight(self._text[self._at])
            self._at += 1
        return "sentence"

    def _is_abbreviation(self) -> bool:
        before = self._text[max(0, self._at - 24) : self._at]
        if _LIST_NUMBER.search(before):
            return True
        match = _WORD_BEFORE.search(before)
        word = match.group() if match else ""
        if word.lower() in _ABBREVIATIONS:
            return True
        # sentence-stream's rule takes "No." and "Yes." for titles; those are in our own list
        return len(word) == 1 and bool(ABBREVIATION_RE.search(f" {word}.")) and word != "I"


def _weight(char: str) -> int:
    if char.isalnum():
        return 3 if _WIDE.match(char) else 1
    return 0 if not char.isspace() else 1
