"""The live explorer answers or rejects every kind of request."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from coupledqk.cli.explore import Explore
from coupledqk.errors import CoupledQKError
from coupledqk.explore.bundle import make_bundle
from coupledqk.explore.server import Server
from coupledqk.server import MOST_BYTES
from test_explore import TEXT, reader


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server([reader("euler", n_positions=64)], TEXT, port=0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def ask(server: Server, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request(method, path, body or None, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    return answer.status, answer.read()


def post(server: Server, text: Any) -> tuple[int, dict[str, Any]]:
    body = json.dumps({"text": text}).encode()
    status, answer = ask(server, "POST", "/bundle", body, Content_Type="application/json")
    return status, json.loads(answer)


def test_the_server_answers_each_sentence_with_its_own_bundle(server: Server) -> None:
    sentences = [f"sentence number {i}" for i in range(6)]
    with ThreadPoolExecutor(6) as several:
        answers = list(several.map(lambda sentence: post(server, sentence), sentences))
    for sentence, answer in zip(sentences, answers, strict=True):
        assert answer == (200, json.loads(json.dumps(make_bundle(server.readers, sentence))))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the text is empty"),
        ("x" * 65, "65 tokens and the model has 64"),
        (["x"], 'expected JSON: {"text"'),
        (None, "expected"),
    ],
)
def test_an_invalid_text_gives_a_one_line_error(text: Any, says: str, server: Server) -> None:
    status, answer = post(server, text)
    assert status == 400
    assert says in answer["error"]
    assert "\n" not in answer["error"]


JSON = {"Content_Type": "application/json"}
REFUSED = [
    ("GET", "/../../etc/passwd", b"", {}, 404, "expected one of GET /"),
    ("GET", "/page.css", b"", {}, 404, "expected one of GET /"),
    ("POST", "/", b"{}", JSON, 404, "/bundle"),
    ("POST", "/bundle", b'{"text": "x"}', {"Content_Type": "text/plain"}, 415, "application/json"),
    ("POST", "/bundle", b"{", JSON, 400, "expected JSON"),
    ("POST", "/bundle", b"[" * 50_000, JSON, 400, "expected JSON"),
    ("POST", "/bundle", b"\xff", JSON, 400, "expected JSON"),
    ("POST", "/bundle", b"", {**JSON, "Content_Length": str(MOST_BYTES + 1)}, 413, "too long"),
    ("POST", "/bundle", b"", {**JSON, "Content_Length": "9" * 5000}, 413, "too long"),
    ("POST", "/bundle", b"", {**JSON, "Content_Length": "-1"}, 411, "Content-Length"),
    ("GET", "/", b"", {"Host": "example.org"}, 403, "answers at http://127.0.0.1"),
    ("POST", "/bundle", b'{"text": "x"}', {**JSON, "Host": "[::"}, 403, "answers at"),
]


@pytest.mark.parametrize(("method", "path", "body", "headers", "status", "says"), REFUSED)
def test_an_invalid_request_is_refused_with_a_message(
    method: str, path: str, body: bytes, headers: dict[str, str], status: int, says: str, server: Server
) -> None:
    answered, answer = ask(server, method, path, body, **headers)
    assert answered == status
    assert says in json.loads(answer)["error"]


def test_the_server_listens_on_loopback_by_default(server: Server) -> None:
    assert Explore((Path("run"),)).host == server.server_address[0] == "127.0.0.1"
    with pytest.raises(OSError, match=r"refused|timed out|unreachable"):
        socket.create_connection(("127.0.0.2", server.server_port), timeout=2)


def test_a_port_in_use_is_reported_in_one_line(server: Server) -> None:
    with pytest.raises(CoupledQKError, match=rf"^port {server.server_port} of 127.0.0.1 is in use: choose another.*$"):
        Server(server.readers, TEXT, port=server.server_port)
    with pytest.raises(CoupledQKError, match="cannot listen on port 99999"):
        Server(server.readers, TEXT, port=99_999)
