"""`say`: speaks a text without a server, through the same parts."""

import argparse
import asyncio
import shutil
import subprocess
import sys
import wave
from pathlib import Path

from ..audio import CHANNELS, SAMPLE_WIDTH
from ..config import Config
from ..engine.base import SAMPLE_RATE
from ..errors import ConfigError

HELP = "speak a text to a file or the loudspeaker"

_PLAYERS = (
    ["aplay", "-q", "-f", "S16_LE", "-r", str(SAMPLE_RATE), "-c", "1"],
    ["pacat", "--format=s16le", f"--rate={SAMPLE_RATE}", "--channels=1"],
    ["play", "-q", "-t", "raw", "-e", "signed", "-b", "16", "-r", str(SAMPLE_RATE), "-c", "1", "-"],
    [
        "ffplay",
        "-loglevel",
        "error",
        "-nodisp",
        "-autoexit",
        "-f",
        "s16le",
        "-ar",
        str(SAMPLE_RATE),
        "-",
    ],
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of this command."""
    parser.add_argument("text", nargs="?", help="what to say; from standard input if missing")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.wav", help="write a WAV file")
    parser.add_argument("--play", action="store_true", help="play as it is made")
    parser.add_argument("--voice", help="name of a voice")
    parser.add_argument(
        "--show-text",
        action="store_true",
        help="print what each stage of the front end makes of it",
    )


def run(config: Config, options: argparse.Namespace) -> int:
    """Speaks."""
    text = options.text if options.text is not None else sys.stdin.read()
    if options.show_text:
        _show_text(config, text)
        if options.output is None and not options.play:
            return 0
    if options.output is None and not options.play:
        raise ConfigError("say: give -o FILE.wav, --play or --show-text")
    return asyncio.run(_say(config, options, text))


def _show_text(config: Config, text: str) -> None:
    from ..text.frontend import FrontEnd
    from ..text.segment import Segmenter

    front_end = FrontEnd(
        control_tokens=config.text.control_tokens, replacements=config.text.replacements
    )
    segmenter = Segmenter(config.text.segment_chars, config.text.first_segment_chars)
    language: str = config.text.language
    for i, segment in enumerate([*segmenter.feed(text), *segmenter.finish()], 1):
        spoken = front_end.speak(segment, language)
        language = spoken.language if not spoken.foreign else language
        print(f"segment {i} ({spoken.language}): {segment!r}")
        for name, result in spoken.stages:
            print(f"  {name:<12} {result!r}")


async def _say(config: Config, options: argparse.Namespace, text: str) -> int:
    output = _Output(options.output, play=options.play)
    return await _speak(config, text, options.voice, output)


async def speak_to_file(config: Config, text: str, voice: str, path: Path) -> int:
    """Speaks a text into a WAV file; returns the exit status."""
    return await _speak(config, text, voice, _Output(path, play=False))


async def _speak(config: Config, text: str, name: str | None, output: "_Output") -> int:
    from ..offline import offline_speech
    from ..speech import whole

    try:
        async with offline_speech(config, allow_fallback=True) as (speech, voices):
            voice = voices.find(name)
            timings = await speech.speak(whole(text), voice, output.write)
        await output.close()
    finally:
        output.abandon()
    print(
        f"{timings.audio:.2f} s of audio in {timings.total:.2f} s "
        f"(first after {timings.first_audio or 0:.2f} s), {timings.segments} segments, "
        f"{timings.cache_hits} from the cache, voice {voice.name}",
        file=sys.stderr,
    )
    return 0


class _Output:
    """A WAV file, a player, or both."""

    def __init__(self, path: Path | None, *, play: bool) -> None:
        self._player: subprocess.Popen[bytes] | None = None
        self._wav: wave.Wave_write | None = None
        if path is not None:
            try:
                self._wav = wave.open(str(path), "wb")  # noqa: SIM115 - closed in close()
            except OSError as error:
                raise ConfigError(f"{path}: {error.strerror}") from None
            self._wav.setparams((CHANNELS, SAMPLE_WIDTH, SAMPLE_RATE, 0, "NONE", ""))
        if play:
            command = next((c for c in _PLAYERS if shutil.which(c[0])), None)
            if command is None:
                names = ", ".join(c[0] for c in _PLAYERS)
                raise ConfigError(f"say --play: none of {names} is installed; use -o FILE.wav")
            self._player = subprocess.Popen(command, stdin=subprocess.PIPE)

    async def write(self, pcm: bytes) -> None:
        """Takes PCM."""
        if self._wav is not None:
            self._wav.writeframesraw(pcm)
        if self._player is not None and self._player.stdin is not None:
            await asyncio.to_thread(self._player.stdin.write, pcm)

    async def close(self) -> None:
        """Ends the file, and waits for the player."""
        if self._player is not None and self._player.stdin is not None:
            self._player.stdin.close()
            await asyncio.to_thread(self._player.wait)
            self._player = None
        self.abandon()

    def abandon(self) -> None:
        """Leaves things in order after a failure."""
        if self._wav is not None:
            self._wav.close()
            self._wav = None
        if self._player is not None:
            self._player.kill()
