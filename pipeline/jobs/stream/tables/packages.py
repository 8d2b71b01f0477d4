"""The packages that Spark needs for a format of tables or bodies, and its settings with them.

Versions are those that the tests run with; newer versions for the same Spark will do. In November
2026 neither Delta nor Iceberg has a package for Spark 4.3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aerobee.pipeline.jobs.common.job_result import JobFailed
from aerobee.pipeline.jobs.stream.job_plan import JobPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXTENSIONS: Final = "spark.sql.extensions"
# In a Maven name: the minor version of Spark, before Scala's.
_MADE_FOR: Final = re.compile(r"_(\d+\.\d+)_2\.\d+:")


class Package(NamedTuple):
    """A package: its name for people, a class of it, its Maven name by minor version of Spark (""
    for any; with {spark} for Spark's whole version), and Spark's settings with it."""

    name: str
    has: str
    maven: Mapping[str, str]
    settings: Mapping[str, str]


PACKAGES: Final = {
    "delta": Package(
        "Delta Lake",
        "io.delta.sql.DeltaSparkSessionExtension",
        {minor: f"io.delta:delta-spark_{minor}_2.13:4.4.0" for minor in ("4.2", "4.1", "4.0")},
        {
            _EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        },
    ),
    "iceberg": Package(
        "Iceberg",
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        {
            "4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
            "4.0": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
        },
        {_EXTENSIONS: "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"},
    ),
    "avro": Package(
        "Spark's Avro",
        "org.apache.spark.sql.avro.AvroUtils",
        {"": "org.apache.spark:spark-avro_2.13:{spark}"},
        {},
    ),
    "protobuf": Package(
        "Spark's Protobuf",
        "org.apache.spark.sql.protobuf.utils.ProtobufUtils",
        {"": "org.apache.spark:spark-protobuf_2.13:{spark}"},
        {},
    ),
}


def settings_of(plan: JobPlan, packages: str | None, conf: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings for the plan; those of the user (`conf`) win, except extensions, which add
    up."""
    package = PACKAGES.get(plan.table.format)
    settings = dict(package.settings) if package else {}
    own = settings.get(_EXTENSIONS)
    settings |= conf
    given = conf.get(_EXTENSIONS)
    if own and given and own not in given.split(","):
        settings[_EXTENSIONS] = f"{own},{given}"
    if packages:
        both = [packages, *filter(None, [conf.get("spark.jars.packages")])]
        settings["spark.jars.packages"] = ",".join(both)
    return settings


def check_asked(plan: JobPlan, packages: str | None, version: str) -> None:
    """Before they are brought: raises JobFailed for a table's package of another Spark."""
    if plan.table.format not in PACKAGES or not version:
        return
    for one in (packages or "").split(","):
        made_for = _MADE_FOR.search(one)
        if made_for is not None and not version.startswith(f"{made_for[1]}."):
            remedy = missing(plan.table.format, version)
            raise JobFailed(
                f"--packages {one} is for Spark {made_for[1]}, and this is {version}: {remedy}"
            )


def check_packages(spark: SparkSession, plan: JobPlan) -> None:
    """Raises JobFailed with the words that bring a package that is missing."""
    for kind in (plan.table.format, plan.body.kind):
        package = PACKAGES.get(kind)
        if package is not None and not _has(spark, package.has):
            raise JobFailed(missing(kind, spark.version))
        if package is not None:
            _check_extensions(spark, package)


def missing(kind: str, version: str) -> str:
    """The remedy for a package that this version of Spark lacks."""
    package = PACKAGES[kind]
    minor = ".".join(version.split(".")[:2])
    maven = package.maven.get(minor) or package.maven.get("")
    if maven is not None:
        what = maven.replace("{spark}", version)
        return f"Spark has no package for {package.name}: add --packages {what}"
    newest = next(iter(package.maven))
    return (
        f"there is no package of {package.name} for Spark {minor}; the newest is for {newest}: pip "
        f"install 'pyspark=={newest}.*', and add --packages {package.maven[newest]}"
    )


def no_packages(error: Exception, asked: str | None) -> JobFailed | None:
    """The sentence for a session that ended while it brought the packages it was asked for."""
    if asked is None or "JAVA_GATEWAY_EXITED" not in str(error):
        return None
    return JobFailed(
        f"Spark did not start with --packages {asked}: what it says above names those that it "
        "could not bring (a jar that is missing in ~/.m2 beside its .pom: remove that folder), or "
        "there is no Java 17"
    )


def _has(spark: SparkSession, name: str) -> bool:
    # By Spark's own loader, which knows what --packages brought.
    jvm: Any = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm.java.lang.Class.forName(name, False, loader)
    except Exception as error:
        if "ClassNotFoundException" in str(error) or "NoClassDefFoundError" in str(error):
            return False
        raise
    return True


def _check_extensions(spark: SparkSession, package: Package) -> None:
    """A session that was there before this job may lack them."""
    wanted = package.settings.get(_EXTENSIONS)
    if wanted and wanted not in str(spark.conf.get(_EXTENSIONS, "")).split(","):
        more = " ".join(f"--conf {name}={value}" for name, value in package.settings.items())
        raise JobFailed(f"this Spark session was made without {package.name}'s settings: {more}")
