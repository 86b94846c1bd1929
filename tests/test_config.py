"""Settings: what is documented, merged and refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from wyoming_chattts.config import Config, Section, load, parse_override
from wyoming_chattts.errors import ConfigError

DOCUMENTED = Path(__file__).parent.parent / "config.yaml"


def test_the_documented_file_has_every_setting_at_its_default() -> None:
    documented = yaml.safe_load(DOCUMENTED.read_text(encoding="utf-8"))
    expected = Config().model_dump(mode="json")
    assert documented == expected
    assert load(DOCUMENTED, environ={}) == Config()


def test_the_command_line_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("engine: {device: cpu, slots: 1, threads: 3}\nmodel:\n")
    environ = {"WYOMING_CHATTTS_ENGINE_SLOTS": "2", "WYOMING_CHATTTS_ENGINE_THREADS": "4"}
    config = load(file, environ, {"engine.threads": 5})
    assert (config.engine.device, config.engine.slots, config.engine.threads) == ("cpu", 2, 5)


def test_environment_variables_reach_every_setting() -> None:
    config = load(
        environ={
            "WYOMING_CHATTTS_DATA_DIR": "/d",
            "WYOMING_CHATTTS_QUEUE_MAX_PENDING": "3",
            "WYOMING_CHATTTS_WARMUP_PHRASES": "[one, two]",
            "WYOMING_CHATTTS_MODEL_VERIFY": "false",
            "WYOMING_CHATTTS_CONFIG": "somewhere",
            "OTHER": "x",
        }
    )
    assert config.data_path == Path("/d")
    assert config.queue.max_pending == 3
    assert config.warmup.phrases == ("one", "two")
    assert config.model.verify is False
    assert config.cache_path == Path("/d/cache")


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"engine.devise": "cpu"}, "engine.devise: no such setting"),
        ({"motor": {}}, "motor: no such setting"),
        ({"engine.slots": "many"}, "engine.slots"),
        ({"engine.slots": 1000}, "engine.slots"),
        ({"engine.precision": "fp8"}, "engine.precision"),
        ({"server.uri": "http://x"}, "server.uri"),
        ({"engine": 5}, "engine"),
        ({"sampling.temperature": 0}, "sampling.temperature"),
        ({"voices.custom": {"a": {"sed": 1}}}, "voices.custom.a.sed: no such setting"),
    ],
)
def test_bad_settings_are_refused_by_name(overrides: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load(environ={}, overrides=overrides)


@pytest.mark.parametrize("name", ["WYOMING_CHATTTS_X", "WYOMING_CHATTTS_ENGINE_DEVISE"])
def test_unknown_variables_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: no such setting"):
        load(environ={name: "1"})


@pytest.mark.parametrize("text", ["- a list", "a: [", "just text"])
def test_a_file_that_is_no_settings_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"c\.yaml"):
        load(tmp_path / "c.yaml", environ={})


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        load(tmp_path / "none.yaml", environ={})


def test_overrides_are_read_as_yaml() -> None:
    assert parse_override("warmup.phrases=[a, b]") == ("warmup.phrases", ["a", "b"])
    with pytest.raises(ConfigError, match=r"section\.key=value"):
        parse_override("nonsense")


def test_every_section_is_frozen_and_strict() -> None:
    for field in Config.model_fields.values():
        if isinstance(field.default, Section):
            assert field.default.model_config["frozen"]
            assert field.default.model_config["extra"] == "forbid"
