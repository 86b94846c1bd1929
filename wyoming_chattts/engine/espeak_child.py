"""Runs espeak-ng: `python espeak_child.py LIBRARY DATA SECONDS`, fed by standard input.

A C library that reads what strangers wrote may crash, hang, or worse. So it runs in a process of
its own, which holds nothing, may write no file, and is started again by `espeak.Espeak`. Imports
the standard library only, so that it starts at once.

It says `HELLO` (samples a second) first. A request is `REQUEST` (words a minute, bytes of the
voice's name, bytes of the text), the name, and the text in UTF-8; an answer is `ANSWER` (whether
the voice is known, espeak-ng's status, bytes of sound) and the sound as 16-bit samples. It ends
with its standard input, or when its start or a text takes longer than `SECONDS`.
"""

import ctypes
import os
import resource
import signal
import struct
import sys

HELLO = struct.Struct("<i")
REQUEST = struct.Struct("<III")
ANSWER = struct.Struct("<?iI")

_MAX_BYTES = 2 * 22_050 * 300
_MEMORY = 1 << 30

# espeak-ng's speak_lib.h
_AUDIO_OUTPUT_SYNCHRONOUS = 2
_INITIALIZE_DONT_EXIT = 0x8000
_CHARS_UTF8 = 1
_POS_CHARACTER = 1
_PARAMETER_RATE = 1
_OK = 0
_GO_ON, _NO_MORE = 0, 1


def main(library_path: str, data_path: str, limit_s: int) -> int:
    """Serves until standard input ends."""
    # whoever started it decides when it ends, by closing its standard input
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for what, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_AS, _MEMORY),
    ):
        resource.setrlimit(what, (limit, limit))
    answers = os.fdopen(os.dup(1), "wb")
    # the library writes remarks of its own to both
    for descriptor in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)

    sound: list[bytes] = []
    left = _MAX_BYTES

    def receive(samples: "ctypes._Pointer[ctypes.c_short]", count: int, _events: int) -> int:
        nonlocal left
        if samples and count > 0:
            sound.append(ctypes.string_at(samples, 2 * count))
            left -= 2 * count
        return _GO_ON if left > 0 else _NO_MORE

    signal.alarm(limit_s)
    library = ctypes.CDLL(library_path)
    rate = library.espeak_Initialize(
        _AUDIO_OUTPUT_SYNCHRONOUS, 0, data_path.encode(), _INITIALIZE_DONT_EXIT
    )
    if rate <= 0:
        return 1
    # kept: C holds a pointer to it
    callback = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
    )(receive)
    library.espeak_SetSynthCallback(callback)
    signal.alarm(0)
    answers.write(HELLO.pack(rate))
    answers.flush()

    requests = sys.stdin.buffer
    while len(header := requests.read(REQUEST.size)) == REQUEST.size:
        words_a_minute, name_size, text_size = REQUEST.unpack(header)
        name, text = requests.read(name_size), requests.read(text_size)
        sound.clear()
        left = _MAX_BYTES
        signal.alarm(limit_s)
        known = library.espeak_SetVoiceByName(name) == _OK
        if not known:
            library.espeak_SetVoiceByName(b"en-us")
        library.espeak_SetParameter(_PARAMETER_RATE, words_a_minute, 0)
        status = library.espeak_Synth(
            text, len(text) + 1, 0, _POS_CHARACTER, 0, _CHARS_UTF8, None, None
        )
        library.espeak_Synchronize()
        signal.alarm(0)
        pcm = b"".join(sound)
        answers.write(ANSWER.pack(known, status, len(pcm)))
        answers.write(pcm)
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
