"""Words of `aerobee pipeline shell` and `submit`: ours, Spark's, and the program's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee.cli.arguments.parser import build_parser
from aerobee.pipeline.jobs.common.job_result import JobFailed
from aerobee.pipeline.launch.words import Words, defaults, flat, split


def words_of(*arguments: str) -> tuple[str, list[str]]:
    """Returns the words as the whole command line has them."""
    parsed = build_parser().parse_args(["pipeline", *arguments])
    assert parsed.command == "pipeline launch"
    return parsed.launch, parsed.words


def test_options_before_the_program_are_sparks_and_those_behind_it_its_own() -> None:
    launch, words = words_of(
        *("submit", "-n", "a:1;b:2", "--master", "local[2]", "--verbose", "--conf", "a.b=c=d"),
        *("app.py", "--master", "mine", "-n", "x", "--", "-h"),
    )
    found = split(words, launch)
    assert found.name_servers == "a:1;b:2"
    assert flat(found.spark) == ["--master", "local[2]", "--verbose", "--conf", "a.b=c=d"]
    assert found.application == "app.py"
    assert found.arguments == ["--master", "mine", "-n", "x", "--", "-h"]


@pytest.mark.parametrize("arguments", [("--master", "spark://m:1"), ("--", "--master=spark://m:1")])
def test_a_shell_takes_sparks_options_with_and_without_a_sign_before_them(
    arguments: tuple[str, ...],
) -> None:
    launch, words = words_of("shell", "--installed", *arguments)
    found = split(words, launch)
    assert flat(found.spark) == ["--master", "spark://m:1"]
    assert found.installed
    assert found.application is None


def test_the_last_of_an_option_counts() -> None:
    found = split(["--conf", "k=1", "--master", "a", "-c", "k=2", "--master=b", "app.py"], "submit")
    assert (found.value("--master"), found.conf("k"), found.conf("other")) == ("b", "2", None)


@pytest.mark.parametrize(
    ("launch", "words", "reason"),
    [
        ("shell", ["app.py"], "is no option; a program is run by `aerobee pipeline submit app.py`"),
        ("submit", ["--master"], "option --master has no value"),
        ("submit", ["-n"], "option -n has no value"),
    ],
)
def test_what_cannot_be_there_is_named(launch: str, words: list[str], reason: str) -> None:
    with pytest.raises(JobFailed, match=reason) as refused:
        split(words, launch)
    assert refused.value.code == 2


def test_help_is_ours(capsys: pytest.CaptureFixture[str]) -> None:
    from aerobee.cli.main import main

    assert main(["pipeline", "submit", "--help"]) == 0
    assert "APP is a program in Python" in capsys.readouterr().out


def test_settings_come_from_the_file_that_spark_reads(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    conf.mkdir()
    text = "# spark.master none\nspark.master   yarn\n\nspark.submit.pyFiles=a.zip\nnothing\n"
    (conf / "spark-defaults.conf").write_text(text)
    wanted = {"spark.master": "yarn", "spark.submit.pyFiles": "a.zip"}
    assert defaults(Words(), tmp_path, {}) == wanted
    assert defaults(Words(), tmp_path / "none", {"SPARK_CONF_DIR": str(conf)}) == wanted
    named = Words(spark=[("--properties-file", str(conf / "spark-defaults.conf"))])
    assert defaults(named, tmp_path / "none", {}) == wanted
    assert defaults(Words(), tmp_path / "none", {}) == {}
