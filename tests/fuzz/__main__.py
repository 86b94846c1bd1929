"""`python -m tests.fuzz SECONDS`: looks for bytes that break the protocol handler (atheris).

The corpus grows in `tests/fuzz/corpus` by inputs that reach new code; an input that breaks
something is written to the current folder as `crash-…`, and belongs into the corpus with its fix.
Flags of libFuzzer may follow the seconds.
"""

import logging
import sys
from pathlib import Path

import atheris

_CODE = [
    *("wyoming_chattts.handler", "wyoming_chattts.protocol_limits", "wyoming_chattts.text.ssml"),
    *("wyoming.event", "wyoming.tts", "json"),
]

with atheris.instrument_imports(include=_CODE):
    from .protocol import Target


def main() -> None:
    """Runs for a while."""
    seconds, *flags = sys.argv[1:] or ["60"]
    logging.getLogger().setLevel(logging.ERROR)
    corpus = Path(__file__).parent / "corpus"
    words = corpus.parent / "words.dict"
    target = Target()
    atheris.Setup(
        [
            sys.argv[0],
            str(corpus),
            f"-max_total_time={seconds}",
            "-max_len=6000",
            f"-dict={words}",
            *flags,
        ],
        target.run,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
