"""A folder served as an S3 bucket on loopback: listing, and reading of whole objects and of ranges."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body in one packet, else every answer waits 40 ms for an acknowledgement
    folder: Path
    served: list[tuple[str, int]]

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        url = urlsplit(self.path)
        _, _, key = unquote(url.path).lstrip("/").partition("/")
        if not key and "list-type" in url.query:
            prefix = parse_qs(url.query).get("prefix", [""])[0]
            self._send(200, _listing(self.folder, prefix), {"Content-Type": "application/xml"}, body)
            return
        file = self.folder / key
        if not key or not file.is_file():
            self._send(200 if not key else 404, b"", {}, body)
            return
        facts = {"Last-Modified": formatdate(file.stat().st_mtime, usegmt=True), "Accept-Ranges": "bytes"}
        size, wanted = file.stat().st_size, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, last = (int(wanted[1]), min(int(wanted[2]), size - 1)) if wanted else (0, size - 1)
        if wanted:
            facts["Content-Range"] = f"bytes {first}-{last}/{size}"
        if body:
            self.served.append((key, last - first + 1))
        with file.open("rb") as content:
            content.seek(first)
            self._send(206 if wanted else 200, content.read(last - first + 1), facts, body)

    def _send(self, status: int, content: bytes, facts: dict[str, str], body: bool) -> None:
        self.send_response(status)
        for name, value in {**facts, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *parts: object) -> None:
        """Nothing: tests look at what was served."""


def _listing(folder: Path, prefix: str) -> bytes:
    files = [
        p for p in sorted(folder.rglob("*")) if p.is_file() and p.relative_to(folder).as_posix().startswith(prefix)
    ]
    found = "".join(
        f"<Contents><Key>{escape(p.relative_to(folder).as_posix())}</Key><Size>{p.stat().st_size}</Size>"
        f"<LastModified>2026-01-01T00:00:{int(p.stat().st_mtime) % 60:02d}.000Z</LastModified></Contents>"
        for p in files
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<IsTruncated>false</IsTruncated><KeyCount>{len(files)}</KeyCount>{found}</ListBucketResult>"
    ).encode()


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """The URI of a bucket with the folder's files, and (object, bytes) of every answer so far."""
    answers: list[tuple[str, int]] = []
    handler = type("Handler", (_Requests,), {"folder": folder, "served": answers})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        address = f"127.0.0.1%3A{server.server_address[1]}"
        yield f"s3://key:secret@bucket?scheme=http&endpoint_override={address}&region=us-east-1", answers
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
