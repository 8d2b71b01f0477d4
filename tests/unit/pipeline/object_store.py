"""An object store that speaks as much of S3 as reading takes, over the files of a directory.

Lists, heads and ranged gets, by HTTP on a free port of the loopback address. It counts what it
gives, and refuses everything that would write.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "backup"
_LIST = "{http://s3.amazonaws.com/doc/2006-03-01/}"


class ObjectStore:
    """A context manager; `uri(path)` is for pyarrow."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.requests: list[tuple[str, str, int]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def uri(self, path: str = "") -> str:
        host = f"127.0.0.1:{self._server.server_port}"
        return (
            f"s3://key:topsecret@{BUCKET}/{path}?scheme=http&endpoint_override={host}"
            "&region=us-east-1"
        )

    @property
    def bytes_read(self) -> int:
        return sum(size for method, _, size in self.requests if method == "GET")


def _handler(store: ObjectStore) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body in one packet: the second of two waits for the peer to acknowledge.
        wbufsize = 1 << 16
        disable_nagle_algorithm = True

        def do_HEAD(self) -> None:
            self._object(send=False)

        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
            if "list-type" in query:
                self._list(query)
            else:
                self._object(send=True)

        def do_PUT(self) -> None:
            self._refuse()

        def do_POST(self) -> None:
            self._refuse()

        def do_DELETE(self) -> None:
            self._refuse()

        def log_message(self, format: str, *args: object) -> None:
            pass

        def _refuse(self) -> None:
            store.requests.append(("REFUSED " + self.command, self.path, 0))
            self._answer(403, b"")

        def _object(self, send: bool) -> None:
            key = unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").lstrip("/")
            path = store.root / key
            if not path.is_file():
                self._answer(404, b"")
                return
            data = path.read_bytes()
            wanted = self.headers.get("Range")
            if wanted is None or not send:
                store.requests.append((self.command, key, 0))
                self._answer(200, data, send)
                return
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            part = data[int(first) : int(last) + 1]
            store.requests.append(("GET", key, len(part)))
            headers = {"Content-Range": f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"}
            self._answer(206, part, True, headers)

        def _list(self, query: dict[str, list[str]]) -> None:
            prefix = query.get("prefix", [""])[0]
            flat = "delimiter" not in query
            objects, folders = [], set()
            for path in sorted(store.root.rglob("*")):
                key = str(path.relative_to(store.root))
                if not path.is_file() or not key.startswith(prefix):
                    continue
                inner = key[len(prefix) :]
                if flat or "/" not in inner:
                    objects.append((key, path.stat().st_size))
                else:
                    folders.add(prefix + inner.split("/")[0] + "/")
            store.requests.append(("LIST", prefix, 0))
            text = "".join(
                f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                for key, size in objects
            ) + "".join(
                f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>"
                for one in sorted(folders)
            )
            count = len(objects) + len(folders)
            body = (
                f'<ListBucketResult xmlns="{_LIST[1:-1]}"><Name>{BUCKET}</Name>'
                f"<Prefix>{escape(prefix)}</Prefix><KeyCount>{count}</KeyCount>"
                f"<IsTruncated>false</IsTruncated>{text}</ListBucketResult>"
            )
            self._answer(200, body.encode())

        def _answer(
            self, status: int, body: bytes, send: bool = True, headers: dict[str, str] | None = None
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.send_header("ETag", '"0"')
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            if send and self.command != "HEAD":
                self.wfile.write(body)

    return Handler
