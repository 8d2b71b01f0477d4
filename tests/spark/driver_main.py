"""The far side of kit.Driver: a SparkSession that runs functions it is sent, one at a time."""

import base64
import json
import os
import pickle
import sys
import traceback

from pyspark.sql import SparkSession


def main() -> None:
    # Answers go out alone; what Spark prints goes where errors go.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    builder = SparkSession.builder.master(sys.argv[1]).appName("aerobee-tests")
    for name, value in pickle.loads(base64.b64decode(sys.argv[2])).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    answers.write(json.dumps({"ready": spark.version}) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(answer(spark, pickle.loads(base64.b64decode(line)))) + "\n")
    spark.stop()


def answer(spark: SparkSession, request: dict) -> dict:
    namespace: dict = {}
    try:
        code = compile("from __future__ import annotations\n" + request["source"], "<test>", "exec")
        exec(code, namespace)
        result = namespace[request["name"]](spark, **request["given"])
        return {"result": base64.b64encode(pickle.dumps(result)).decode()}
    except Exception as error:  # noqa: BLE001  told to the test
        return {"error": f"{type(error).__name__}: {error}\n{traceback.format_exc()}"}


if __name__ == "__main__":
    main()
