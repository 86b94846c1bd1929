"""Written form → spoken form, run by run of one language.

Rules of ours for the kinds that wetext reads wrong, then wetext (WeTextProcessing's grammars, the
field's usual normaliser for Chinese), then words for any digit that is left.
"""

import logging
from functools import cache

from wetext import Normalizer

from .rules_en import apply_en, expand_titles, finish_en
from .rules_zh import apply_zh, finish_zh
from .runs import Run, language_runs

_LOGGER = logging.getLogger(__name__)


def normalize(text: str, default: str = "en") -> str:
    """The spoken form of a text without markup. `default` is the language of a lone number."""
    return "".join(map(_run, language_runs(expand_titles(text), default)))


def _run(run: Run) -> str:
    if run.language == "zh":
        return finish_zh(_wetext("zh", apply_zh(run.text)))
    return finish_en(_wetext("en", apply_en(run.text)))


def _wetext(language: str, text: str) -> str:
    """wetext's answer; the text itself where there are no digits left for it, or it fails."""
    if not any(map(str.isdigit, text)):
        return text
    # it strips white space at the ends, which parts runs
    body = text.strip()
    start = text.index(body) if body else 0
    try:
        spoken = str(_normalizer(language).normalize(body))
    # its parser asserts and indexes its way through tokens that it did not expect
    except (AssertionError, ValueError, IndexError, KeyError, RuntimeError) as error:
        _LOGGER.debug("wetext cannot read a text: %r", error)
        return text
    return text[:start] + spoken + text[start + len(body) :]


@cache
def _normalizer(language: str) -> Normalizer:
    return Normalizer(lang=language, operator="tn")
