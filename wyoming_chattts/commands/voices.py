"""`voices`: lists, hears, adds, removes, exports and imports voices of the voices folder.

A running server sees what changed within seconds.
"""

import argparse
import asyncio
import json
import secrets
import sys
from pathlib import Path
from typing import Any

from ..config import Config, VoiceConfig
from ..errors import ConfigError, VoiceError
from ..voice_folder import VoiceFolder, checked_definition, checked_name, dump, parse
from ..voices import Voices, portable

HELP = "list, hear, add, remove, export and import voices"

_SAMPLE_TEXTS = (
    "Good morning. The kitchen light is on, and it is 21 degrees outside. "
    "早上好，客厅的灯已经打开了。"
)
_FILE_LIMIT = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Subcommands of this command."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = actions.add_parser("list", help="print the voices (default)")
    listing.add_argument("--json", action="store_true", help="as one line of JSON")
    sample = actions.add_parser("sample", help="speak a voice's sample text to a file")
    sample.add_argument("name")
    sample.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.wav")
    sample.add_argument("--text")
    adding = actions.add_parser("add", help="keep a voice in the voices folder")
    adding.add_argument("name")
    source = adding.add_mutually_exclusive_group(required=True)
    source.add_argument("--seed", type=int, help="a speaker by number")
    source.add_argument("--random", action="store_true", help="a speaker by chance")
    source.add_argument("--embedding", metavar="STRING", help="the string that ChatTTS prints")
    source.add_argument("--file", type=Path, help="a .pt or .txt file")
    source.add_argument("--recording", type=Path, metavar="FILE.wav", help="2 to 15 s of speech")
    adding.add_argument("--text", help="what is said in the recording, word for word")
    adding.add_argument("--description")
    adding.add_argument("--speed", type=int, metavar="0-9")
    adding.add_argument("--oral", type=int, metavar="0-9")
    adding.add_argument("--laugh", type=int, metavar="0-2")
    adding.add_argument("--pause", type=int, metavar="0-7")
    adding.add_argument("--temperature", type=float)
    adding.add_argument("--gain-db", type=float)
    adding.add_argument("--sample-text")
    adding.add_argument("--replace", action="store_true", help="overwrite a voice of this name")
    for name, text in (
        ("remove", "set a voice of the folder aside"),
        ("default", "choose the default voice"),
    ):
        actions.add_parser(name, help=text).add_argument("name")
    export = actions.add_parser("export", help="write a voice as YAML, for another machine")
    export.add_argument("name")
    export.add_argument("-o", "--output", type=Path, metavar="FILE.yaml")
    importing = actions.add_parser("import", help="take in a .yaml, .pt or .txt voice")
    importing.add_argument("file", type=Path)
    importing.add_argument("--name", help="another name than the file's")
    importing.add_argument("--replace", action="store_true")
    return list(actions.choices.values())


def run(config: Config, options: argparse.Namespace) -> int:
    """Does what was asked; `VoiceError` says what is wrong with a voice."""
    action = options.action or "list"
    try:
        return int(_ACTIONS[action](config, options) or 0)
    except OSError as error:
        raise VoiceError(f"{config.voices_path}: {error.strerror or error}") from None


def _list(config: Config, options: argparse.Namespace) -> int:
    voices = Voices(config)
    if getattr(options, "json", False):
        rows = [
            {"name": v.name, "description": v.description, "origin": v.origin, "default": i == 0}
            for i, v in enumerate(voices.all())
        ]
        print(json.dumps(rows, ensure_ascii=False))
        return 0
    for i, voice in enumerate(voices.all()):
        mark = " (default)" if i == 0 else ""
        print(f"{voice.name}{mark}: {voice.description}")
    for name, problem in voices.problems.items():
        print(f"left out: {name}: {problem}", file=sys.stderr)
    return 1 if voices.problems else 0


def _sample(config: Config, options: argparse.Namespace) -> int:
    from .say import speak_to_file

    voice = Voices(config).get(options.name)
    if voice is None:
        raise VoiceError(f"there is no voice {options.name!r}")
    text = options.text or voice.source.sample_text or _SAMPLE_TEXTS
    return asyncio.run(speak_to_file(config, text, voice.name, options.output))


def _add(config: Config, options: argparse.Namespace) -> None:
    name = checked_name(options.name)
    properties = _properties(options)
    checked_definition(properties)
    definition = checked_definition(_source(config, options) | properties)
    _save(config, name, definition, replace=options.replace)


def _source(config: Config, options: argparse.Namespace) -> dict[str, Any]:
    if options.recording is not None:
        return _enrolled(config, options)
    if options.seed is not None:
        return {"seed": options.seed}
    if options.random:
        return {"seed": secrets.randbelow(2**31)}
    if options.embedding is not None:
        return {"embedding": options.embedding}
    from ..engine import speaker

    return {"embedding": speaker.to_string(speaker.from_file(options.file))}


def _enrolled(config: Config, options: argparse.Namespace) -> dict[str, Any]:
    from ..engine.checkpoint import open_checkpoint
    from ..engine.enrol import check_recording, encode_recording

    if not (options.text or "").strip():
        raise ConfigError("voices add --recording: give --text, what is said in it word for word")
    check = check_recording(options.recording)
    print(f"recording: {check}")
    for advice in check.advice:
        print(f"  better were: {advice}")
    checkpoint = open_checkpoint(config.model_path, verify=False)
    return {
        "recording": encode_recording(checkpoint, check.audio),
        "transcript": options.text.strip(),
    }


def _properties(options: argparse.Namespace) -> dict[str, Any]:
    style = {
        key: value
        for key in ("speed", "oral", "laugh", "pause")
        if (value := getattr(options, key)) is not None
    }
    given = {
        key: value
        for key in ("description", "temperature", "gain_db", "sample_text")
        if (value := getattr(options, key)) is not None
    }
    return given | ({"style": style} if style else {})


def _save(config: Config, name: str, definition: VoiceConfig, *, replace: bool) -> None:
    voices = Voices(config)
    voices.keep(name, definition, replace=replace)
    print(f"{voices.folder.path / name}.yaml: kept; a running server offers it within seconds")


def _remove(config: Config, options: argparse.Namespace) -> None:
    folder = VoiceFolder(config.voices_path)
    token = folder.remove(options.name)
    print(f"removed; it lies in {folder.path / '.deleted' / token}")


def _default(config: Config, options: argparse.Namespace) -> None:
    Voices(config).set_default(options.name)
    print(f"{options.name} is the default voice")


def _export(config: Config, options: argparse.Namespace) -> None:
    voice = Voices(config).get(options.name)
    if voice is None:
        raise VoiceError(f"there is no voice {options.name!r}")
    text = dump(portable(voice))
    if options.output is None:
        print(text, end="")
    else:
        options.output.write_text(text, encoding="utf-8")


def _import(config: Config, options: argparse.Namespace) -> None:
    file: Path = options.file
    name = checked_name(options.name or file.stem)
    if file.suffix in (".pt", ".txt"):
        from ..engine import speaker

        definition = VoiceConfig(embedding=speaker.to_string(speaker.from_file(file)))
    else:
        if file.stat().st_size > _FILE_LIMIT:
            raise VoiceError(f"{file}: too large for a voice")
        definition = parse(file.read_text(encoding="utf-8", errors="replace"))
        if definition.file is not None:
            raise VoiceError(f"{file}: names another file; export it where it was made")
    _save(config, name, definition, replace=options.replace)


_ACTIONS: dict[str, Any] = {
    "list": _list,
    "sample": _sample,
    "add": _add,
    "remove": _remove,
    "default": _default,
    "export": _export,
    "import": _import,
}
