"""Makes objects of S3 once: the put is refused when there is an object of that name.

pyarrow's file system replaces without a word, so the few objects that decide something are put by
boto3 (extra `s3`), with the bucket, server and keys of the same URI; without keys in it both look
where all programs of AWS do.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

#: Makes an object of that name (bucket/key) with that content; False if the name is taken.
Create = Callable[[str, bytes], bool]

_EXISTS: Final = "PreconditionFailed"
# Two puts at the same moment: the server lets neither through, or one, and says so to the other.
_CONFLICT: Final = "ConditionalRequestConflict"
_MOST_TRIES: Final = 10


def creator(uri: str) -> Create | None:
    """For the bucket of an s3:// URI as pyarrow takes it; None without boto3."""
    if find_spec("boto3") is None:
        return None
    client = _client(uri)

    def create(place: str, data: bytes) -> bool:
        from botocore.exceptions import ClientError

        bucket, _, key = place.partition("/")
        for _ in range(_MOST_TRIES):
            try:
                client.put_object(Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")
            except ClientError as error:
                if error.response["Error"]["Code"] == _CONFLICT:
                    continue
                if error.response["Error"]["Code"] != _EXISTS:
                    raise OSError(f"cannot write {place}: {error}") from error
                # A put whose answer was lost is sent again, and then finds itself.
                found = client.get_object(Bucket=bucket, Key=key)["Body"].read()
                return bool(found == data)
            return True
        raise OSError(f"cannot write {place}: others write it at the same time, again and again")

    return create


def _client(uri: str) -> Any:
    import boto3
    from botocore.config import Config

    parts = urlsplit(uri)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    endpoint = options.get("endpoint_override")
    if endpoint and "://" not in endpoint:
        endpoint = f"{options.get('scheme', 'https')}://{endpoint}"
    keys = {}
    if parts.username:
        keys = {
            "aws_access_key_id": unquote(parts.username),
            "aws_secret_access_key": unquote(parts.password or ""),
        }
    # A private server has no name for each bucket; pyarrow does it this way too.
    style = {"addressing_style": "path"} if endpoint else {}
    return boto3.client(
        "s3", endpoint_url=endpoint, region_name=options.get("region"),
        verify=options.get("tls_ca_file_path"), config=Config(s3=style), **keys,
    )  # fmt: skip
