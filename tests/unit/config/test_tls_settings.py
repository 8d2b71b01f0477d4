"""The settings of encryption: RocketMQ's file of them, and what follows from what is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee.config.errors import ConfigError
from aerobee.config.loading import load as loading
from aerobee.config.loading.load import Loaded, load_settings
from aerobee.config.model import Settings

PAIR = ("tls.server.certPath=/c.pem", "tls.server.keyPath=/k.pem")


@pytest.fixture(autouse=True)
def _nothing_in_etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "TLS_PROPERTIES", tmp_path / "etc.properties")


def load(*given: str) -> Loaded:
    return load_settings(environ={}, overrides=given)


def refused(*given: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(*given)
    return caught.value


def test_without_a_certificate_no_tls_is_taken() -> None:
    assert load().settings.tls_mode == "disabled"
    assert not load().settings.takes_tls


def test_a_certificate_makes_the_mode_permissive_unless_one_is_given() -> None:
    loaded = load(*PAIR)
    assert loaded.settings.tls_mode == "permissive"
    assert loaded.origins["tls_mode"].text == "a certificate is given"
    assert loaded.warnings == ()
    for mode in ("disabled", "enforcing"):
        assert load(*PAIR, f"tls.server.mode={mode}").settings.tls_mode == mode


def test_rocketmqs_file_is_read_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text(
        "# of a Java broker\n"
        "tls.test.mode.enable=false\n"
        "tls.server.need.client.auth=require\n"
        "tls.server.keyPath=/opt/certFiles/server.key\n"
        "tls.server.keyPassword=pass\\u0077ord\n"
        "tls.server.certPath=/opt/certFiles/server.pem\n"
        "tls.server.authClient=true\n"
        "tls.server.trustCertPath=/opt/certFiles/ca.pem\n"
        "tls.client.authServer=true\n"
        "tls.client.trustCertPath=/opt/certFiles/ca.pem\n"
    )
    loaded = load(f"tls.config.file={file}")
    settings = loaded.settings
    assert (settings.tls_mode, settings.tls_test_mode) == ("permissive", False)
    assert settings.tls_key_path == "/opt/certFiles/server.key"
    assert settings.tls_key_password == "password"
    assert settings.tls_client_certificate == "require"
    assert settings.tls_check_servers
    assert loaded.origins["tls_key_path"].text == f"{file}:4"
    assert loaded.warnings == ()
    # A setting from elsewhere counts more.
    assert load(f"tls.config.file={file}", "tls.key_path=/mine").settings.tls_key_path == "/mine"


def test_the_file_says_nothing_but_what_it_may(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.mode=enforcing\ntls.enable=true\nlistenPort=1\nfoo=1\n")
    loaded = load(f"tls.config.file={file}")
    assert loaded.settings == Settings(tls_config_file=str(file)).resolve()
    assert [line.partition(": ")[2].split()[0] for line in loaded.warnings] == [
        "tls.server.mode",
        "tls.enable",
        "listenPort",
        "foo",
    ]


def test_the_usual_file_is_read_when_tls_is_asked_for() -> None:
    loading.TLS_PROPERTIES.write_text("tls.server.certPath=/c.pem\ntls.server.keyPath=/k.pem\n")
    assert load().settings.tls_certificate_path == ""
    for asked in ("tls.server.mode=enforcing", "tls.enable=true"):
        assert load(asked).settings.tls_certificate_path == "/c.pem"


def test_a_file_that_is_named_has_to_be_there(tmp_path: Path) -> None:
    assert "No such file" in str(refused(f"tls.config.file={tmp_path / 'none'}"))


@pytest.mark.parametrize(
    ("given", "key", "text"),
    [
        ((PAIR[0],), "tls.server.certPath", "needs tls.server.keyPath (tls.key_path) beside it"),
        ((PAIR[1],), "tls.server.keyPath", "needs tls.server.certPath (tls.certificate_path)"),
        (
            ("tls.server.mode=enforcing", "tls.test.mode.enable=false"),
            "tls.server.mode",
            "needs a certificate",
        ),
        (
            (*PAIR, "tls.server.need.client.auth=require"),
            "tls.server.need.client.auth",
            "needs what clients' certificates are checked against",
        ),
        (("tls.server.mode=strict",), "tls.server.mode", "must be disabled or permissive"),
    ],
)
def test_halves_stop_the_start(given: tuple[str, ...], key: str, text: str) -> None:
    error = refused(*given)
    assert error.key == key
    assert text in str(error)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("tls.server.mode=permissive",), "a certificate that is made at each start"),
        ((*PAIR, "tls.test.mode.enable=true"), "tls.test.mode.enable is ignored"),
        ((*PAIR, "tls.server.need.client.auth=optional"), "asked for no certificate"),
        (
            (
                *PAIR,
                "tls.server.need.client.auth=require",
                "tls.server.trustCertPath=/t.pem",
                "tls.server.authClient=false",
            ),
            "are checked, though",
        ),
    ],
)
def test_what_is_other_than_one_may_think_is_said(given: tuple[str, ...], text: str) -> None:
    (warning,) = load(*given).warnings
    assert text in warning


def test_passwords_are_in_no_text() -> None:
    settings = Settings.for_tests(tls_key_password="hunter2", tls_client_key_password="hunter2")
    assert "hunter2" not in repr(settings)
    error = refused("tls.server.keyPassword=hunter2\x01")
    assert "hunter2" not in str(error)


def test_a_broker_conf_with_tls_alone_is_no_toml(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("tls.enable=true\n")
    loaded = load_settings(file, environ={})
    assert loaded.format == "properties"
    assert loaded.settings.tls_outgoing
