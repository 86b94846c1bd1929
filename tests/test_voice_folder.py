"""The folder of voices, the commands that work on it, and a server that follows it."""

import math
import struct
import wave
from pathlib import Path
from typing import Any

import pytest

from wyoming_chattts.cli import run
from wyoming_chattts.config import VoiceConfig, load
from wyoming_chattts.engine import speaker
from wyoming_chattts.engine.checkpoint import open_checkpoint
from wyoming_chattts.engine.enrol import check_recording, encode_recording
from wyoming_chattts.errors import VoiceError
from wyoming_chattts.voice_folder import VoiceFolder, checked_name, dump, parse
from wyoming_chattts.voices import Voices

from .harness import ServerProcess, describe, equal, loudness, say


def voices_in(folder: Path, **overrides: Any) -> Voices:
    return Voices(load(environ={}, overrides={"data_dir": str(folder.parent)} | overrides))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "voices"
    path.mkdir()
    return path


def test_files_of_every_kind_are_voices(folder: Path) -> None:
    import torch

    numbers = torch.frombuffer(bytearray(speaker.from_seed(3)), dtype=torch.float16)
    torch.save(numbers, folder / "tensor.pt")
    (folder / "string.txt").write_text(speaker.to_string(speaker.from_seed(4)))
    (folder / "yaml.yaml").write_text("seed: 5\nstyle: {speed: 2}\ngain_db: 1.5\n")
    (folder / "beside.yaml").write_text("file: beside.pt\ndescription: with more said\n")
    torch.save(numbers, folder / "beside.pt")
    (folder / "notes.md").write_text("not a voice")
    voices = voices_in(folder)
    voices.resolve()
    assert voices.problems == {}
    found = {v.name: v for v in voices.all() if v.origin == "folder"}
    assert set(found) == {"tensor", "string", "yaml", "beside"}
    assert found["tensor"].embedding == found["beside"].embedding == speaker.from_seed(3)
    assert found["string"].embedding == speaker.from_seed(4)
    assert (found["yaml"].style.speed, found["yaml"].gain_db) == (2, 1.5)
    assert found["beside"].description == "with more said"


@pytest.mark.parametrize(
    ("name", "contents", "problem"),
    [
        ("a.yaml", b"seed: [1", "not YAML"),
        ("a.yaml", b"- 1", "not a voice"),
        ("a.yaml", b"", "not a voice"),
        ("a.yaml", b"seed: 1\nfile: x.pt", "needs one of"),
        ("a.yaml", b"description: nobody", "needs one of"),
        ("a.yaml", b"seed: 1\nspeeed: 2", "speeed"),
        ("a.yaml", b"seed: 1\nstyle: {speed: 10}", "speed"),
        ("a.yaml", b"recording: abc", "transcript"),
        ("a.yaml", b"recording: abc\ntranscript: hello", "recording"),
        ("a.yaml", b"embedding: abc", "numbers, not 768"),
        ("a.yaml", b"!!python/object/apply:os.system ['touch never']", "not YAML"),
        ("a.yaml", b"&a [*a]", "not"),
        ("a.yaml", b"x" * 2_000_000, "too large"),
        ("a.pt", b"cos\nsystem\n(S'touch never'\ntR.", "not a speaker embedding"),
        ("a.pt", b"PK\x03\x04", "not a speaker embedding"),
        ("a.txt", b"hello", "speaker string"),
        ("a.txt", b"\xff\xfe", "not a speaker embedding"),
    ],
)
def test_a_file_that_is_no_voice_is_told_and_left_out(
    folder: Path, name: str, contents: bytes, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / name).write_bytes(contents)
    (folder / "good.yaml").write_text("seed: 1")
    voices = voices_in(folder)
    voices.resolve()
    assert voices.get("a") is None and voices.get("good") is not None
    assert problem in " ".join(voices.problems.values())
    assert not (folder / "never").exists()


def test_an_embedding_of_the_wrong_length_is_refused(folder: Path) -> None:
    import torch

    torch.save(torch.zeros(100), folder / "short.pt")
    voices = voices_in(folder)
    voices.resolve()
    assert "100 numbers, not 768" in voices.problems["short"]


def test_two_voices_of_one_name(folder: Path) -> None:
    """The settings win over the folder, the folder over built-in ones, `.yaml` over the rest."""
    (folder / "seed-2.yaml").write_text("seed: 77")
    (folder / "twice.yaml").write_text("seed: 1")
    (folder / "twice.txt").write_text("whatever")
    (folder / "mine.yaml").write_text("seed: 2")
    voices = voices_in(folder, **{"voices.custom": {"mine": {"seed": 3}}})
    voices.resolve()
    assert voices.find("seed-2").embedding == speaker.from_seed(77)
    assert voices.find("twice").embedding == speaker.from_seed(1)
    assert voices.find("mine").embedding == speaker.from_seed(3)
    assert set(voices.problems) == {"twice.txt", "mine"}


@pytest.mark.parametrize(
    "name", ["", " ", "a/b", "a\\b", "..", ".hidden", "a\nb", "x" * 65, "a:b", "con?", "\0"]
)
def test_names_that_cannot_be_files(folder: Path, name: str) -> None:
    with pytest.raises(VoiceError):
        VoiceFolder(folder).save(name, VoiceConfig(seed=1))
    assert list(folder.iterdir()) == []


def test_a_name_has_one_form() -> None:
    assert checked_name(" Küche ") == "Küche" and checked_name("厨房") == "厨房"


def test_what_is_removed_comes_back_and_old_ones_go(folder: Path) -> None:
    store = VoiceFolder(folder)
    store.save("a", VoiceConfig(seed=1))
    token = store.remove("a")
    assert store.read().voices == {}
    store.save("a", VoiceConfig(seed=2))
    with pytest.raises(VoiceError, match="by now"):
        store.restore(token)
    store.remove("a")
    assert store.restore(token) == "a"
    assert store.read().voices["a"].seed == 1
    for _ in range(30):
        store.save("b", VoiceConfig(seed=2))
        store.remove("b")
    assert len(list((folder / ".deleted").iterdir())) == 20


def test_the_default_that_was_chosen_yields_to_a_new_setting(folder: Path) -> None:
    voices = voices_in(folder)
    voices.set_default("seed-42")
    assert voices.default.name == "seed-42"
    assert voices_in(folder).default.name == "seed-42"
    assert voices_in(folder, **{"voices.default": "seed-1111"}).default.name == "seed-1111"


def test_yaml_comes_back_as_it_went() -> None:
    voice = VoiceConfig.model_validate(
        {"seed": 1, "description": "厨房: yes", "style": {"speed": 3}, "gain_db": -2.5}
    )
    assert parse(dump(voice)) == voice
    assert "null" not in dump(voice)


async def test_a_running_server_follows_the_folder(tiny_dir: Path, tmp_path: Path) -> None:
    arguments = ("--model-dir", str(tiny_dir), "--set", "voices.rescan_s=0.05")
    with ServerProcess(tmp_path, *arguments) as server:
        server.wait_ready()
        before = await say(server.uri, "It is late.", "seed-2")
        adding = "add kitchen --seed 5 --speed 4 --description".split()
        assert run(["voices", *adding, "new here", "--data-dir", str(tmp_path)]) == 0
        server.wait_for("the voices changed: there are 11")
        found = {v.name: v.description for v in (await describe(server.uri)).tts[0].voices}
        assert found["kitchen"] == "new here"
        spoken = await say(server.uri, "It is late.", "kitchen")
        assert not equal(spoken.pcm, before.pcm) and loudness(spoken.pcm) > 0.001
        assert run(["voices", "remove", "kitchen", "--data-dir", str(tmp_path)]) == 0
        server.wait_for("the voices changed: there are 10")
        # a satellite that still asks for it is spoken to with the default voice
        assert equal((await say(server.uri, "It is late.", "kitchen")).pcm, before.pcm)


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def command(*arguments: str) -> tuple[int, str]:
        status = run(["voices", *arguments, "--data-dir", str(tmp_path)])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    assert command("add", "a", "--random", "--gain-db", "2")[0] == 0
    assert "already" in command("add", "a", "--seed", "2")[1]
    assert command("add", "a", "--seed", "2", "--replace")[0] == 0
    assert "already (builtin)" in command("add", "seed-2", "--seed", "2", "--replace")[1]
    assert "speed" in command("add", "b", "--seed", "2", "--speed", "11")[1]
    assert "cannot be" in command("add", "b/c", "--seed", "2")[1]
    assert command("default", "a") == (0, "a is the default voice\n")
    status, text = command("list")
    assert status == 0 and text.startswith("a (default): ")
    assert '"default": true' in command("list", "--json")[1]
    out = tmp_path / "out.yaml"
    assert command("export", "a", "-o", str(out))[0] == 0
    assert out.read_text() == "seed: 2\n"
    assert command("import", str(out), "--name", "b")[0] == 0
    text_file = tmp_path / "friend.txt"
    text_file.write_text(speaker.to_string(speaker.from_seed(8)))
    assert command("import", str(text_file))[0] == 0
    assert command("export", "friend")[1].startswith("embedding: ")
    bad = tmp_path / "bad.yaml"
    bad.write_text("file: /etc/passwd")
    assert "names another file" in command("import", str(bad))[1]
    assert command("remove", "b")[0] == 0
    assert "there is no voice 'b'" in command("remove", "b")[1]
    assert "there is no voice 'b'" in command("export", "b")[1]


def test_a_folder_that_cannot_be_written_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "voices").write_text("in the way")
    assert run(["voices", "add", "a", "--seed", "1", "--data-dir", str(tmp_path)]) == 2
    assert "voices: " in capsys.readouterr().err
    assert (tmp_path / "voices").read_text() == "in the way"


def record(
    path: Path, seconds: float, rate: int = 16_000, level: float = 0.3, width: int = 2
) -> Path:
    """A hum with syllables."""
    with wave.open(str(path), "wb") as file:
        file.setparams((1, width, rate, 0, "NONE", ""))
        scale = 2 ** (8 * width - 1) - 1
        data = bytearray()
        for i in range(int(seconds * rate)):
            t = i / rate
            value = level * math.sin(2 * math.pi * 180 * t) * (0.6 + 0.4 * math.sin(20 * t))
            data += struct.pack("<i", int(max(-1, min(1, value)) * scale))[:width]
        file.writeframes(bytes(data))
    return path


def test_a_recording_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "r.wav"
    good = check_recording(record(file, 5, rate=44_100))
    assert good.audio.size == pytest.approx(5 * 24_000, abs=2) and good.advice == ()
    assert good.level_db == pytest.approx(-17.6, abs=1)
    three = check_recording(record(file, 5, width=3))
    assert abs(three.level_db - good.level_db) < 0.5
    with pytest.raises(VoiceError, match=r"1\.0 s long"):
        check_recording(record(file, 1))
    with pytest.raises(VoiceError, match=r"20\.0 s long"):
        check_recording(record(file, 20))
    with pytest.raises(VoiceError, match="too quiet"):
        check_recording(record(file, 3, level=0.003))
    assert "rather quiet" in check_recording(record(file, 3, level=0.03)).advice[0]
    assert "clipped" in check_recording(record(file, 3, level=3)).advice[0]
    assert "8000 Hz" in check_recording(record(file, 3, rate=8000)).advice[0]
    file.write_bytes(b"ID3 not a wave")
    with pytest.raises(VoiceError, match="ffmpeg"):
        check_recording(file)
    with pytest.raises(VoiceError, match="No such file"):
        check_recording(tmp_path / "none.wav")


@pytest.mark.oracle
async def test_a_recording_becomes_a_voice(
    tiny_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--data-dir", str(tmp_path), "--model-dir", str(tiny_dir)]
    file = record(tmp_path / "r.wav", 3)
    assert run(["voices", "add", "me", "--recording", str(file), *common]) == 2
    assert "--text" in capsys.readouterr().err
    status = run(
        ["voices", "add", "me", "--recording", str(file), "--text", "hello there", *common]
    )
    assert status == 0
    assert "3.0 s at 16000 Hz" in capsys.readouterr().out
    with ServerProcess(tmp_path, "--model-dir", str(tiny_dir)) as server:
        server.wait_ready()
        other = await say(server.uri, "It is late.", "seed-2")
        mine = await say(server.uri, "It is late.", "me")
        assert loudness(mine.pcm) > 0.001 and not equal(mine.pcm, other.pcm)
        assert "there is no voice" not in "\n".join(server.lines)


@pytest.mark.oracle
def test_codes_of_a_recording_are_the_packages_own(tiny_dir: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_dir)
    check = check_recording(record(tmp_path / "r.wav", 3))
    encoded = encode_recording(checkpoint, check.audio)
    codes = speaker.codes_from_string(encoded)
    assert speaker.codes_to_string(codes) == encoded
    # two mel frames of 256 samples are a step
    assert len(codes) // 8 == pytest.approx(3 * 46.875, abs=2)


@pytest.mark.parametrize("damage", [slice(0, 10), slice(0, 0), slice(4, None)])
def test_a_damaged_recording_is_refused(damage: slice) -> None:
    good = speaker.codes_to_string(bytes(range(200)) * 8)
    assert len(speaker.codes_from_string(speaker.codes_to_string(b"\1\0" * 40))) == 80
    with pytest.raises(VoiceError):
        speaker.codes_from_string(good[damage])
