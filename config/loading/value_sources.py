"""Where values come from: flags, environment, files. Each source gives a list of `Given`.

Nothing is interpreted here beyond the syntax: which setting a key means, whether the value fits and
which source wins is decided in `load.py`.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

from aerobee.config.errors import ConfigError
from aerobee.config.loading.properties_file import PropertiesSyntaxError, parse_properties
from aerobee.config.model import BY_NAME, BY_ROCKETMQ_KEY, SECTIONS

Syntax = Literal["properties", "toml", "remote", "environment", "set", "flag"]
FileFormat = Literal["toml", "properties"]

ENVIRONMENT_PREFIX: Final = "AEROBEE__"

# Variables of ours that are no settings, and those of container systems.
_NOT_A_SETTING: Final = re.compile(
    r"AEROBEE_(CONTEXT|CREDENTIALS|NATIVE|TEST_NATIVE|INTEROP_\w*|\w*SERVICE_(HOST|PORT)(_\w+)?|\w*PORT_[0-9]+_(TCP|UDP)(_\w+)?)"
)
_SECTION_NAMES: Final = frozenset(section.section for section in SECTIONS)
# Characters that no line of a configuration has: tab, line ends and form feed are Java's blanks.
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0b\x0e-\x1f\x7f]")
_TOML_HEADER: Final = re.compile(r"^[ \t]*\[+[ \t]*([^\]]+?)[ \t]*\]+[ \t]*(#.*)?$")
_TOML_KEY: Final = re.compile(r"""^[ \t]*([A-Za-z0-9_.\-"' \t]+?)[ \t]*=""")
# RocketMQ reads these from its command line alone.
_NOT_IN_TLS_PROPERTIES: Final = frozenset({"tls.server.mode", "tls.enable", "tls.config.file"})
_FILE_BYTES_MAX: Final = 4 * 1024 * 1024


class Given(NamedTuple):
    """One given value. `value` is text unless the syntax has types (TOML, flags); "remote" is TOML
    of the file that requests have changed, or the text of a request."""

    key: str
    value: object
    where: str
    syntax: Syntax


class FileContent(NamedTuple):
    """The settings in a file, how it was read, and the warnings about it."""

    given: list[Given]
    format: FileFormat
    warnings: list[str]


def read_file(path: Path, file_format: FileFormat | None) -> FileContent:
    """Read a TOML file or a broker.conf. What `file_format` and a name that ends in ".toml" do not
    say, the content does."""
    try:
        with path.open("rb") as stream:
            data = stream.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError("", "", f"cannot read: {error.strerror}", str(path)) from None
    if len(data) > _FILE_BYTES_MAX:
        raise ConfigError("", "", "larger than 4 MiB: not a configuration file", str(path))
    if file_format is None and path.suffix == ".toml":
        file_format = "toml"
    if (file_format or detect_format(data)) == "toml":
        return _read_toml(path, data)
    return _read_properties(path, data)


def read_tls_properties(path: Path) -> FileContent:
    """Read a tls.properties, of which only what it may say is given: nothing but settings of
    encryption, and not whether there is any."""
    content = read_file(path, "properties")
    given, warnings = [], list(content.warnings)
    for item in content.given:
        setting = BY_ROCKETMQ_KEY.get(item.key)
        if setting is None or setting.section != "tls" or item.key in _NOT_IN_TLS_PROPERTIES:
            warnings.append(f"{item.where}: {item.key} is ignored: it has no place in this file")
        else:
            given.append(item)
    return FileContent(given, "properties", warnings)


def detect_format(data: bytes) -> FileFormat:
    """TOML has our sections; a broker.conf has none, and its keys have no underscores."""
    significant = False
    for line in data.decode("utf-8", "replace").splitlines():
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        significant = True
        header = _TOML_HEADER.match(text)
        if header and re.fullmatch(r"[\w.\- \"']+", header[1]):
            return "toml"
        key = re.split(r"[=:\s]", text, maxsplit=1)[0]
        head, dot, _ = key.partition(".")
        # `tls.` begins a section's names here, and properties of RocketMQ.
        of_section = dot and head in _SECTION_NAMES and key not in BY_ROCKETMQ_KEY
        if (of_section and _is_toml(data)) or ("_" in key and key in BY_NAME):
            return "toml"
    return "properties" if significant else "toml"


def from_environment(environ: Mapping[str, str]) -> list[Given]:
    """`AEROBEE__SECTION__KEY=value`, any case after the prefix."""
    given = []
    for name in sorted(environ):
        if name.startswith(ENVIRONMENT_PREFIX):
            key = name.removeprefix(ENVIRONMENT_PREFIX).replace("__", ".").lower()
            given.append(Given(key, environ[name], f"environment {name}", "environment"))
    return given


def from_rocketmq_environment(environ: Mapping[str, str]) -> list[Given]:
    """NAMESRV_ADDR and ROCKETMQ_HOME: defaults of RocketMQ's own, so below any file."""
    pairs = (("NAMESRV_ADDR", "broker.name_servers"), ("ROCKETMQ_HOME", "broker.rocketmq_home"))
    return [
        Given(key, environ[name], f"environment {name}", "environment")
        for name, key in pairs
        if environ.get(name)
    ]


def misspelt_environment(environ: Mapping[str, str]) -> list[str]:
    """A warning for each variable that looks like a setting but has single underscores.

    What container systems set for a service named aerobee (AEROBEE_PORT=tcp://...) is left alone.
    """
    right = {f"{setting.section}_{setting.key}": setting.full_key for setting in BY_NAME.values()}
    warnings = []
    for name in sorted(environ):
        if not name.startswith("AEROBEE_") or name.startswith(ENVIRONMENT_PREFIX):
            continue
        if _NOT_A_SETTING.fullmatch(name) or environ[name].startswith(("tcp://", "udp://")):
            continue
        full_key = right.get(re.sub("__+", "_", name.removeprefix("AEROBEE_")).lower())
        form = full_key.replace(".", "__").upper() if full_key else "SECTION__KEY"
        warnings.append(
            f"environment {name} is ignored: settings are written with double underscores, "
            f"{ENVIRONMENT_PREFIX}{form}"
        )
    return warnings


def from_overrides(overrides: Iterable[str]) -> list[Given]:
    """`--set KEY=VALUE`; KEY may be `section.key`, an attribute's name or RocketMQ's key."""
    given = []
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(text, "", "must be KEY=VALUE", "--set")
        given.append(Given(key.strip(), value.strip(), "--set", "set"))
    return given


def from_flags(flags: Mapping[str, object]) -> list[Given]:
    """Values of named flags by attribute; None means the flag was not given."""
    return [
        Given(name, value, "command line", "flag")
        for name, value in flags.items()
        if value is not None
    ]


def _is_toml(data: bytes) -> bool:
    import tomllib  # a start without a file does without, and so does `aerobee config show`

    try:
        tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return False
    return True


def _read_toml(path: Path, data: bytes) -> FileContent:
    import tomllib

    try:
        text = data.decode("utf-8")
        document = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError("", "", "is not UTF-8", f"{path}:{line}") from None
    except tomllib.TOMLDecodeError as error:
        line_match = re.search(r"line (\d+)", str(error))
        where = f"{path}:{line_match[1]}" if line_match else str(path)
        raise ConfigError("", "", f"is not TOML: {error}", where) from None
    lines = _toml_lines(text)
    given = []
    for key, value in _flatten(document):
        where = f"{path}:{lines[key]}" if key in lines else str(path)
        given.append(Given(key, value, where, "toml"))
    return FileContent(given, "toml", [])


def _flatten(document: Mapping[str, object]) -> list[tuple[str, object]]:
    """One level of tables is a section; anything deeper is left whole, to be refused later."""
    pairs: list[tuple[str, object]] = []
    for name, value in document.items():
        if isinstance(value, dict):
            pairs.extend((f"{name}.{key}", inner) for key, inner in value.items())
        else:
            pairs.append((name, value))
    return pairs


def _toml_lines(text: str) -> dict[str, int]:
    """Line of each `section.key`: tomllib does not tell, and error messages must."""
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TOML_HEADER.match(line):
            section = header[1].strip("\"'") + "."
        elif key := _TOML_KEY.match(line):
            name = re.sub(r"[\"' \t]", "", key[1])
            lines.setdefault(section + name, number)
    return lines


def _read_properties(path: Path, data: bytes) -> FileContent:
    if odd := _CONTROL.search(data):
        line = data.count(b"\n", 0, odd.start()) + 1
        text = f"a byte {odd[0][0]:#04x} is in no text: is this the configuration?"
        raise ConfigError("", "", text, f"{path}:{line}")
    try:
        parsed = parse_properties(data)
    except PropertiesSyntaxError as error:
        raise ConfigError("", "", error.reason, f"{path}:{error.line}") from None
    warnings = []
    if parsed.encoding == "UTF-8":
        warnings.append(f"{path}: read as UTF-8 (Java reads ISO-8859-1)")
    given: dict[str, Given] = {}
    for key, value, line in parsed.entries:
        where = f"{path}:{line}"
        trimmed = value.rstrip()
        if trimmed != value:
            warnings.append(f"{where}: {key}: blanks after the value are ignored (Java keeps them)")
        if key in given:
            warnings.append(f"{where}: {key} is set twice; this one counts")
        given[key] = Given(key, trimmed, where, "properties")
    return FileContent(list(given.values()), "properties", warnings)
