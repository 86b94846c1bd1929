"""The add-on's and the container's files fit the server and Home Assistant's Supervisor."""

import json
import re
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from wyoming_chattts import __version__
from wyoming_chattts.addon_options import OPTIONS, read_options
from wyoming_chattts.cli import _parser, _settings
from wyoming_chattts.config import Config, load
from wyoming_chattts.errors import ConfigError
from wyoming_chattts.web.access import INGRESS_GATEWAY

ROOT = Path(__file__).parent.parent
ADDON = ROOT / "addon"
S6 = ADDON / "rootfs/etc/s6-overlay/s6-rc.d"

MANIFEST: dict[str, Any] = yaml.safe_load((ADDON / "config.yaml").read_text(encoding="utf-8"))

# the keys that Supervisor knows (supervisor/addons/validate.py), with their defaults if any
KNOWN: dict[str, Any] = {
    "name": None, "version": None, "slug": None, "description": None, "arch": None, "url": None,
    "startup": "application", "boot": "auto", "init": True, "advanced": False, "stage": "stable",
    "ports": None, "ports_description": None, "webui": None, "ingress": False,
    "ingress_port": 8099, "ingress_entry": None, "ingress_stream": False,
    "panel_icon": "mdi:puzzle", "panel_title": None, "panel_admin": True, "homeassistant": None,
    "map": [], "environment": None, "apparmor": True, "hassio_api": False,
    "hassio_role": "default", "homeassistant_api": False, "tmpfs": False, "discovery": None,
    "backup_exclude": None, "backup": "hot", "options": {}, "schema": {}, "image": None,
    "timeout": 10, "journald": False, "breaking_versions": [],
}  # fmt: skip


def options_file(folder: Path, **options: Any) -> Path:
    file = folder / "options.json"
    file.write_text(json.dumps(MANIFEST["options"] | options), encoding="utf-8")
    return file


def serve_line() -> list[str]:
    """Arguments that the add-on's service gives to the server."""
    text = (S6 / "chattts/run").read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = re.findall(r"wyoming-chattts (serve .*)", text)
    return str(line).replace('"', "").split()


def served(options: Path) -> Config:
    """The settings that the add-on's server runs with."""
    arguments = [
        str(options) if word == "${options}" else word.replace("${share}", "/share/chattts")
        for word in serve_line()
        if word != "${flags[@]}"
    ]
    return _settings(_parser().parse_args(arguments))


def test_the_manifest_has_known_keys_without_needless_ones() -> None:
    assert set(MANIFEST) <= set(KNOWN)
    needless = [key for key, value in MANIFEST.items() if value == KNOWN[key]]
    assert needless == []
    assert re.fullmatch(r"[a-z0-9_]+", MANIFEST["slug"])
    assert MANIFEST["discovery"] == ["wyoming"] and MANIFEST["ingress"]
    assert MANIFEST["arch"] == ["amd64", "aarch64"]


def test_versions_agree() -> None:
    assert MANIFEST["version"] == __version__
    for changelog in (ADDON / "CHANGELOG.md", ROOT / "CHANGELOG.md"):
        assert f"## {__version__}" in changelog.read_text(encoding="utf-8")


def test_every_option_is_a_setting_and_is_described() -> None:
    assert set(MANIFEST["schema"]) == set(OPTIONS)
    # what is not among the defaults must be optional
    for name, kind in MANIFEST["schema"].items():
        assert (name in MANIFEST["options"]) != (isinstance(kind, str) and kind.endswith("?"))
    for language in ("en", "zh-Hans"):
        text = (ADDON / "translations" / f"{language}.yaml").read_text(encoding="utf-8")
        translation = yaml.safe_load(text)
        assert set(translation["configuration"]) == set(OPTIONS)
        assert set(translation["network"]) == set(MANIFEST["ports"])
        for words in translation["configuration"].values():
            assert words["name"] and len(words["description"]) > 10
    assert {f"| {n} |" for n in _names("en")} <= _table_starts(ADDON / "DOCS.md")


def _names(language: str) -> list[str]:
    text = (ADDON / "translations" / f"{language}.yaml").read_text(encoding="utf-8")
    return [words["name"] for words in yaml.safe_load(text)["configuration"].values()]


def _table_starts(file: Path) -> set[str]:
    return set(re.findall(r"^\| [^|]+ \|", file.read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize(
    ("option", "value", "setting", "expected"),
    [
        ("voice", "kitchen", "voices.default", "kitchen"),
        ("language", "zh", "text.language", "zh"),
        ("precision", "fp32", "engine.precision", "fp32"),
        ("cache_size_mb", 64, "cache.size_mb", 64),
        ("warm_up_phrases", ["Hello."], "warmup.phrases", ("Hello.",)),
        ("log_level", "debug", "log.level", "DEBUG"),
        ("model_mirror", "https://example.org", "model.endpoint", "https://example.org"),
        ("model_mirror", "", "model.endpoint", None),
    ],
)
def test_an_option_has_its_effect(
    tmp_path: Path, option: str, value: Any, setting: str, expected: Any
) -> None:
    config = served(options_file(tmp_path, **{option: value}))
    section, key = setting.split(".")
    assert getattr(getattr(config, section), key) == expected


def test_replacements_come_through(tmp_path: Path) -> None:
    entries = [{"word": "Mochi", "say": "摩奇", "language": "zh"}, {"word": "TV", "say": "telly"}]
    config = served(options_file(tmp_path, replacements=entries))
    assert [(r.word, r.say, r.language) for r in config.text.replacements] == [
        ("Mochi", "摩奇", "zh"),
        ("TV", "telly", None),
    ]


def test_choices_are_those_of_the_settings(tmp_path: Path) -> None:
    for option, kind in MANIFEST["schema"].items():
        if isinstance(kind, str) and kind.startswith("list("):
            for choice in kind.removeprefix("list(").removesuffix(")").split("|"):
                served(options_file(tmp_path, **{option: choice}))
    low, high = re.findall(r"\d+", MANIFEST["schema"]["cache_size_mb"])
    for size in (int(low), int(high)):
        served(options_file(tmp_path, cache_size_mb=size))


def test_the_options_as_they_come_are_the_servers_defaults(tmp_path: Path) -> None:
    """But for what the add-on's surroundings need."""
    config, defaults = served(options_file(tmp_path)), load(environ={})
    assert (
        config.model_copy(update={"data_dir": None, "web": defaults.web, "voices": defaults.voices})
        == defaults
    )
    assert config.voices.model_copy(update={"dir": None}) == defaults.voices
    assert (config.web.host, config.web.port, config.web.ingress) == (
        "0.0.0.0",
        MANIFEST.get("ingress_port", 8099),
        True,
    )
    assert config.web.token is None and INGRESS_GATEWAY == "172.30.32.2"
    assert not config.server.zeroconf
    assert f"{config.server.uri.rsplit(':', 1)[1]}/tcp" in MANIFEST["ports"]


@pytest.mark.parametrize(
    ("contents", "named"),
    [
        ("{", "options.json"),
        ("[]", "not an object"),
        ('{"voise": "x"}', "voise"),
        ('{"cache_size_mb": "many"}', "cache_size_mb"),
        ('{"replacements": [1]}', "replacements"),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, contents: str, named: str) -> None:
    file = tmp_path / "options.json"
    file.write_text(contents)
    with pytest.raises(ConfigError, match=re.escape(named)):
        read_options(file)


def test_supervisor_waits_longer_than_the_server_drains() -> None:
    assert MANIFEST["timeout"] > load(environ={}).server.drain_s + 5
    compose = yaml.safe_load((ADDON / "compose.yaml").read_text(encoding="utf-8"))
    service = compose["services"]["chattts"]
    assert int(service["stop_grace_period"].removesuffix("s")) > load(environ={}).server.drain_s + 5


def test_services_are_what_s6_wants() -> None:
    contents = {f.name for f in (S6 / "user/contents.d").iterdir()}
    assert contents == {"chattts", "discovery"}
    assert (S6 / "chattts/type").read_text().strip() == "longrun"
    assert (S6 / "discovery/type").read_text().strip() == "oneshot"
    up = (S6 / "discovery/up").read_text().strip()
    assert (ADDON / "rootfs" / up.lstrip("/")).exists()
    assert (S6 / "discovery/dependencies.d/chattts").exists()
    for script in (S6 / "chattts/run", S6 / "chattts/finish", S6 / "discovery/run"):
        assert script.stat().st_mode & 0o111, script


def test_scripts_are_sound() -> None:
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    scripts = [f for f in (ROOT / "script").iterdir() if b"bash" in f.read_bytes()[:40]]
    scripts += [ROOT / ".ci/run", *S6.glob("*/run"), *S6.glob("*/finish")]
    assert len(scripts) >= 8
    result = subprocess.run(
        [shellcheck, *map(str, scripts)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout


def test_the_gpu_container_reads_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    compose = yaml.safe_load((ADDON / "compose.yaml").read_text(encoding="utf-8"))
    service = compose["services"]["chattts"]
    assert service["gpus"] == "all" and service["read_only"] and service["cap_drop"] == ["ALL"]
    assert {v.split(":")[0] for v in service["volumes"]} == set(compose["volumes"])
    for token, expected in (("", None), ("open sesame", "open sesame")):
        environ = {
            name: re.sub(r"\$\{.*\}", token, value)
            for name, value in service["environment"].items()
        }
        config = load(environ=environ)
        assert (config.web.host, config.web.token) == ("0.0.0.0", expected)
    published = {port.split(":")[1] for port in service["ports"]}
    defaults = load(environ={})
    assert published == {defaults.server.uri.rsplit(":", 1)[1], str(defaults.web.port)}


def test_dockerfiles_copy_what_there_is() -> None:
    gpu = (ADDON / "Dockerfile.gpu").read_text(encoding="utf-8")
    for sources in re.findall(r"^COPY (.+) \S+$", gpu, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists(), source
    for file in ("Dockerfile", "Dockerfile.gpu"):
        text = (ADDON / file).read_text(encoding="utf-8")
        assert "HEALTHCHECK" in text and '"health"' in text
        assert "--no-install-recommends" in text
        assert re.search(r"rm -rf .*/var/lib/apt/lists/\*", text)


def test_the_dashboard_asks_for_figures_that_there_are() -> None:
    board = json.loads((ADDON / "grafana-dashboard.json").read_text(encoding="utf-8"))
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"chattts_\w+", target["expr"])
    }
    source = "".join(
        (ROOT / "wyoming_chattts" / f"{name}.py").read_text(encoding="utf-8")
        for name in ("metrics", "status")
    )
    for name in asked:
        base = re.sub(r"_(total|bucket)$", "", name.removeprefix("chattts_"))
        assert f'"{base}"' in source or f'"chattts_{base}"' in source, name
    assert len(asked) > 12


def test_pictures_have_the_sizes_that_the_store_wants() -> None:
    for name, size in (("icon.png", (128, 128)), ("logo.png", None)):
        data = (ADDON / name).read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = (int.from_bytes(data[i : i + 4], "big") for i in (16, 20))
        assert size is None or (width, height) == size
        assert height == 128 and width < 500


@pytest.mark.slow
def test_the_laid_out_folder_holds_the_wheel_with_all_it_needs(tmp_path: Path) -> None:
    result = subprocess.run(
        [str(ROOT / "script/package-addon"), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    out = tmp_path / "out"
    assert {"config.yaml", "Dockerfile", "DOCS.md", "rootfs", "wheels", "apparmor.txt"} <= {
        f.name for f in out.iterdir()
    }
    (wheel,) = (out / "wheels").glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for path in (ROOT / "wyoming_chattts").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert str(path.relative_to(ROOT)) in names, path
