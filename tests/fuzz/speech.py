"""`python -m tests.fuzz.speech SECONDS [SEED]`: random texts through the front end and espeak-ng.

Both are compiled code that reads what strangers wrote. A text that espeak-ng crashes at is printed
(it belongs into `espeak.json`); one that it cannot speak even without its signs, or that takes more
than seconds, is a fault, and so is the end of this process.
"""

import faulthandler
import json
import logging
import random
import sys
import time
from collections.abc import Iterator

from wyoming_chattts.config import FallbackConfig
from wyoming_chattts.engine.base import End, Prompt, Sampling
from wyoming_chattts.engine.espeak import Espeak
from wyoming_chattts.engine.fallback import FallbackEngine
from wyoming_chattts.errors import EngineFailed
from wyoming_chattts.text.frontend import FrontEnd

_LANGUAGES = "en zh de fr es it nl pt ja ko ru ar he hi th el".split()
_RANGES = [
    *[(0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x5FF)],
    *[(0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x2000, 0x206F)],
    *[(0x2100, 0x2BFF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xFF00, 0xFFEF)],
    *[(0x1F300, 0x1FAFF), (0x20, 0x10FFFF)],
]
_WORDS = (
    "the kitchen is 12345 99999999999999999999 1e9 -5 3.14 10:30 www.a.b a.b@c.de I'm U.S.A. xxxx "
    ".. ... !!! ?? ((( [[ ]] {} <a> &amp; % # \\ / ' \" -- __ ~~ *** 1,000,000 MCMXC iiii aBcD "
    "и это der die und 温度 二十 あ 한국 שלום ไทย السلام"
).split()
_LONGEST = 1200
_SLOW_S = 5.0


def texts(chance: random.Random) -> Iterator[tuple[str, str]]:
    """Languages and texts without end."""
    while True:
        length = chance.choice([1, 3, 10, 40, 200, 800])
        ranges = chance.sample(_RANGES, 3)
        kind = chance.choice(["one", "mixed", "words", "joined", "repeated"])
        if kind == "one":
            text = "".join(chr(chance.randint(*ranges[0])) for _ in range(length))
        elif kind == "mixed":
            text = "".join(
                chr(chance.randint(*chance.choice(ranges))) if chance.random() < 0.8 else " "
                for _ in range(length)
            )
        elif kind == "repeated":
            text = chr(chance.randint(*ranges[0])) * length
        else:
            text = (" " if kind == "words" else "").join(chance.choices(_WORDS, k=length // 3 + 1))
        yield chance.choice(_LANGUAGES), text.encode("utf-8", "ignore").decode()[:_LONGEST]


def main() -> int:
    """Runs for a while; the status is 1 if there was a fault."""
    seconds, seed = float(sys.argv[1]), int((sys.argv[2:] or ["0"])[0])
    faulthandler.enable()
    logging.disable()
    espeak, engine, front = Espeak(), FallbackEngine(FallbackConfig()), FrontEnd()
    end, count, crashes, faults = time.monotonic() + seconds, 0, 0, 0
    for language, text in texts(random.Random(seed)):
        if time.monotonic() > end:
            break
        count += 1
        begin = time.monotonic()
        spoken = front.speak(text, language if language in ("en", "zh") else "en")
        for tongue, said in ((language, text), (spoken.language, spoken.text)):
            try:
                espeak.speak(said, {"zh": "cmn"}.get(tongue, tongue), 170)
            except EngineFailed as error:
                crashes += 1
                print(f"{error}: {json.dumps([tongue, said], ensure_ascii=False)}", flush=True)
            engine.start(0, Prompt(said, language=tongue), Sampling())
            if engine.burst(8)[0].end not in (End.COMPLETE, End.EMPTY):
                faults += 1
                print(f"FAULT: {json.dumps([tongue, said])}", flush=True)
        if time.monotonic() - begin > _SLOW_S:
            faults += 1
            print(f"SLOW: {json.dumps([language, text])}", flush=True)
    espeak.close()
    engine.close()
    print(f"{count} texts (seed {seed}), {crashes} crashes of espeak-ng, {faults} faults")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
