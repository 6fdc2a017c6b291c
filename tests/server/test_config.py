"""Settings: the file lists them all, three sources in order, everything wrong refused by name."""

from __future__ import annotations

import dataclasses
import os
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from engine import ConfigError, EngineConfig, LoraFile, SamplingParams
from server.config import AppConfig, EngineSettings, SamplingSection
from server.config_sources import load_config

ROOT_FILE = Path(__file__).resolve().parents[2] / "config.toml"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no config.toml is."""
    monkeypatch.chdir(tmp_path)


def test_the_root_file_lists_every_setting_with_its_default() -> None:
    listed = tomllib.loads(ROOT_FILE.read_text())
    defaults = {
        name: field.default.model_dump(mode="json")
        for name, field in AppConfig.model_fields.items()
        if isinstance(field.default, BaseModel)
    }
    assert listed == defaults
    assert {k: list(v) for k, v in listed.items()} == {k: list(v) for k, v in defaults.items()}
    for line in ROOT_FILE.read_text().splitlines():
        if "=" in line and not line.startswith("#") and "_penalty = 0.0" not in line:
            assert "#" in line, f"no comment: {line}"


def test_sections_cover_the_engines_own_classes() -> None:
    made = load_config(overrides={"engine": {"model_path": "m.gguf"}})
    parts = [part.to_engine() for _, part in made if isinstance(part, EngineSettings)]
    named = [name for part in parts for name in part]
    assert sorted(named) == sorted(f.name for f in dataclasses.fields(EngineConfig))
    assert made.to_engine_config() == EngineConfig("m.gguf")
    per_request = {"seed", "stop", "stop_token_ids", "logit_bias", "ignore_eos", "min_tokens"}
    per_request |= {"n_probs", "post_sampling_probs", "samplers"}
    names = {f.name for f in dataclasses.fields(SamplingParams)}
    assert set(SamplingSection.model_fields) == names - per_request
    assert SamplingSection().to_sampling_params() == SamplingParams()
    assert SamplingSection(max_tokens=5).to_sampling_params().max_tokens == 5


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("5", 5),
        ("'512'", 512),
        ("'3B'", 3),
        ("'6GB'", 6 * 10**9),
        ("'1.5GiB'", 3 << 29),
        ("'10 M'", 10**7),
    ],
)
def test_sizes_may_have_units(tmp_path: Path, text: str, n_bytes: int) -> None:
    file = tmp_path / "my.toml"
    file.write_text(f"[memory]\nmax_memory = {text}\n")
    assert load_config(file).to_engine_config().max_memory_bytes == n_bytes


def test_flags_over_environment_over_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "my.toml"
    file.write_text('[server]\nport = 1001\nhost = "::1"\n[engine]\nn_ctx = 100\n')
    config = load_config(file)
    assert (config.server.port, config.server.host, config.engine.n_ctx) == (1001, "::1", 100)
    monkeypatch.setenv("RUSHLIGHT_SERVER__PORT", "1002")
    monkeypatch.setenv("rushlight_sampling__temperature", "0.5")
    config = load_config(file)
    assert (config.server.port, config.server.host) == (1002, "::1")
    assert config.sampling.temperature == 0.5
    config = load_config(file, {"server": {"port": 1003}})
    assert (config.server.port, config.server.host) == (1003, "::1")


def test_the_file_in_the_working_directory_is_read(tmp_path: Path) -> None:
    assert load_config().server.port == 8080
    (tmp_path / "config.toml").write_text("[server]\nport = 1001\n")
    assert load_config().server.port == 1001


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[server]\nprot = 1", "my.toml: server.prot: there is no such setting"),
        ("[servr]\nport = 1", "my.toml: servr: there is no such setting"),
        ("port = 1", "my.toml: port: there is no such setting"),
        ("[server]\nport = 70000", "my.toml: server.port: .*65535 .it is 70000."),
        ("[server]\nport = true", "my.toml: server.port: is true or false"),
        ("[server]\nport = 'x'", "my.toml: server.port: .*integer"),
        ("[server]\nhost = 5", "my.toml: server.host: .*string"),
        ("[server]\nunknown_fields = 'maybe'", "'ignore' or 'refuse' .it is 'maybe'."),
        ("[engine]\nn_ctx = -4", "my.toml: engine.n_ctx: n_ctx = -4 is outside 0..16777216"),
        ("[queue]\ntimeout_s = -1", "queue.timeout_s: timeout_s = -1.0 is outside 0"),
        ("[scheduler]\npolicy = 'lifo'", "scheduler.policy: policy = 'lifo' is none of fcfs, sjf"),
        ("[cache]\nmemory = '1.5 GX'", "cache.memory: is not a size like 512MB .*it is '1.5 GX'"),
        ("[cache]\nmemory = true", "cache.memory: is true or false"),
        ("[sampling]\ntemperature = nan", "sampling.temperature: .*finite"),
        ("[sampling]\ntop_p = 1.5", "my.toml: sampling.top_p: top_p must be from 0 to 1, not 1.5$"),
        ("[log]\nlevel = 'loud'", "log.level: "),
        ("[server]\nport = \n", "my.toml: .*line 2"),
        ("server = 1", "my.toml: server: .*it is 1"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "my.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as refused:
        load_config(file)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RUSHLIGHT_SERVER__PORT", "x", "RUSHLIGHT_SERVER__PORT: server.port: .*integer"),
        ("RUSHLIGHT_SERVER__PROT", "1", "RUSHLIGHT_SERVER__PROT: server.prot: there is no such"),
        ("RUSHLIGHT_SERVR__PORT", "1", "RUSHLIGHT_SERVR__PORT: there is no section 'servr'"),
        (
            "RUSHLIGHT_SERVER__HOST__X",
            "1",
            "RUSHLIGHT_SERVER__HOST__X: server.host__x: there",
        ),
        ("RUSHLIGHT_ENGINE__N_CTX", "-4", "RUSHLIGHT_ENGINE__N_CTX: engine.n_ctx: n_ctx = -4 is"),
        ("RUSHLIGHT_LOG", "debug", "RUSHLIGHT_LOG: it is a section; .* RUSHLIGHT_LOG__LEVEL"),
        ("RUSHLIGHT_SERVER", '{"port": 1}', "RUSHLIGHT_SERVER: it is a section"),
    ],
)
def test_bad_variables(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message) as refused:
        load_config()
    assert "config.toml" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RUSHLIGHT_CPU_PROFILE", "x86-64-v3"),  # the engine's, for debugging
        ("RUSHLIGHT_PORT", "tcp://10.0.0.1:80"),  # Kubernetes sets such things
        ("RUSHLIGHT_SERVER__PORT", ""),  # empty counts as not set
    ],
)
def test_variables_that_are_no_settings(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert load_config().server.port == 8080


def test_bad_flags(tmp_path: Path) -> None:
    bad: list[tuple[dict[str, dict[str, Any]], str]] = [
        ({"server": {"port": -1}}, "command line: server.port"),
        (
            {"engine": {"n_threads": 5000}},
            "command line: engine.n_threads: n_threads = 5000 is",
        ),
    ]
    for overrides, message in bad:
        with pytest.raises(ConfigError, match=message):
            load_config(overrides=overrides)
    with pytest.raises(ConfigError, match=r"missing\.toml: there is no such file"):
        load_config(tmp_path / "missing.toml")


def test_several_problems_are_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text("[server]\nport = -1\n[sampling]\ntop_p = 2\n")
    with pytest.raises(ConfigError, match=r"server\.port.*; .*sampling\.top_p: top_p"):
        load_config(file)


@pytest.mark.parametrize(
    "text", ["[tool]\nx = 1\n[lint]\ny = 2", "[server]\nroot = '/srv'", "server = 1", "{", "é"]
)
def test_the_config_file_of_another_program(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"^config\.toml: .*use --config FILE\)$"):
        load_config()
    with pytest.raises(ConfigError) as refused:
        load_config(tmp_path / "config.toml")
    assert "--config" not in str(refused.value)
    assert load_config(Path("/dev/null")).server.port == 8080


def test_a_pipe_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("[server]\nport = 1001\n",))
    writer.start()
    assert load_config(pipe).server.port == 1001
    writer.join()


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"it cannot be read: Is a directory$"):
        load_config(tmp_path)

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)  # root may read everything
    with pytest.raises(ConfigError, match=r"^config\.toml: .* read: Permission denied \("):
        load_config()


def test_nothing_can_be_changed_later() -> None:
    config = load_config()
    with pytest.raises(ValueError, match="frozen"):
        config.server.port = 1


def test_adapters_come_from_every_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = (LoraFile(Path("a.gguf")), LoraFile(Path("b.gguf"), 0.5))
    file = tmp_path / "my.toml"
    file.write_text('[engine]\nlora = ["a.gguf", "b.gguf:0.5"]')
    assert load_config(file).to_engine_config().lora == expected
    flags = {"engine": {"lora": ["b.gguf:0.5"]}}
    assert load_config(file, flags).to_engine_config().lora == expected[1:]
    monkeypatch.setenv("RUSHLIGHT_ENGINE__LORA", "a.gguf,b.gguf:0.5")
    assert load_config().to_engine_config().lora == expected


def test_an_impossible_scale_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUSHLIGHT_ENGINE__LORA", "a.gguf,b.gguf:inf")
    with pytest.raises(
        ConfigError, match=r"RUSHLIGHT_ENGINE__LORA: engine\.lora\.1: lora = 'b\.gguf:inf'"
    ):
        load_config()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("api_keys = ['']", "server.api_keys.0: "),
        ("api_keys = ['two words']", "server.api_keys.0: "),
        ("api_keys = 5", "server.api_keys: .*list"),
        ("api_keys = ['a,b', 'c']", "server.api_keys.0: "),
        ("cors_origins = ['localhost:3000']", "server.cors_origins.0: "),
        ("cors_origins = ['http://localhost:3000/']", "server.cors_origins.0: "),
        ("cors_origins = ['http://a/*']", "server.cors_origins.0: "),
    ],
)
def test_keys_and_origins_that_could_never_match(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "my.toml"
    file.write_text(f"[server]\n{text}\n")
    with pytest.raises(ConfigError, match=message):
        load_config(file)


def test_keys_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUSHLIGHT_SERVER__API_KEYS", "sk-one,sk-two")
    assert load_config().server.api_keys == ["sk-one", "sk-two"]
    monkeypatch.setenv("RUSHLIGHT_SERVER__CORS_ORIGINS", "*,app://obsidian.md")
    assert load_config().server.cors_origins == ["*", "app://obsidian.md"]


def test_any_strings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "RUSHLIGHT_SAMPLING__DRY_SEQUENCE_BREAKERS"
    monkeypatch.setenv(name, '["\\n", ",", "a,b"]')
    assert load_config().sampling.dry_sequence_breakers == ["\n", ",", "a,b"]
    for bad, message in (
        ("a,b", rf'{name}: sampling\.dry_sequence_breakers: is no JSON like \["a", "b"\]'),
        ("[1]", rf"{name}: sampling\.dry_sequence_breakers\.0: .*string"),
    ):
        monkeypatch.setenv(name, bad)
        with pytest.raises(ConfigError, match=message):
            load_config()
