"""Written form → spoken form, run by run of one language."""

from functools import cache

from wetext import Normalizer

from .runs import Run, language_runs


def normalize(text: str, default: str = "en") -> str:
    """The spoken form of a text without markup. `default` is the language of a lone number."""
    return "".join(_run(run) for run in language_runs(text, default))


def _run(run: Run) -> str:
    if run.language == "zh":
        return str(_wetext("zh").normalize(run.text))
    return str(_wetext("en").normalize(run.text))


@cache
def _wetext(language: str) -> Normalizer:
    return Normalizer(lang=language, operator="tn")
