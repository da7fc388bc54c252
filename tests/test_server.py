"""The local server answers every request, and no client can block it."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from coupledqk import server as module
from coupledqk.errors import CoupledQKError
from coupledqk.server import Answer, LocalServer, json_answer


@contextlib.contextmanager
def serving(routes) -> Iterator[LocalServer]:
    with LocalServer(routes, port=0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with serving({"GET /": lambda _: Answer(b"page"), "POST /echo": json_answer}) as server:
        yield server


def connect(server: LocalServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_port), timeout=30)


def answer_to(server: LocalServer, request: bytes) -> tuple[int, bytes]:
    with connect(server) as client:
        client.sendall(request)
        received = b"".join(iter(lambda: client.recv(65_536), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


POST = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_a_hundred_clients_at_once_are_all_answered() -> None:
    together = threading.Barrier(100)
    waiting = threading.Lock()

    def answer(body):
        with waiting:  # one at a time, like requests to a model
            return json_answer(body)

    def ask(number: int) -> bytes:
        together.wait()
        body = str(number).encode()
        return answer_to(server, POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)[1]

    with serving({"POST /echo": answer}) as server, ThreadPoolExecutor(100) as clients:
        assert sorted(map(int, clients.map(ask, range(100)))) == list(range(100))


def test_connections_made_before_the_server_starts_serving_are_answered() -> None:
    with LocalServer({"GET /": lambda _: Answer(b"page")}, port=0) as server:
        clients = [connect(server) for _ in range(100)]
        for client in clients:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert all(client.makefile("rb").read().endswith(b"page") for client in clients)
        server.shutdown()
        for client in clients:
            client.close()


@pytest.mark.parametrize("beginning", [b"", b"GET / HT", POST, POST + b"Content-Length: 9\r\n\r\n12"])
def test_an_incomplete_request_is_dropped(beginning: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS_TO_SEND", 0.2)
    with serving({"POST /echo": json_answer}) as server, connect(server) as client:
        client.sendall(beginning)
        assert client.recv(100) == b""


def test_a_request_that_is_sent_too_slowly_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS_TO_SEND", 0.3)
    with serving({"GET /": lambda _: Answer(b"page")}) as server, connect(server) as client:
        client.settimeout(0.05)
        for _ in range(600):
            with contextlib.suppress(TimeoutError):
                try:
                    client.sendall(b"x")
                    if client.recv(100) == b"":
                        return
                except ConnectionError:
                    return
        pytest.fail("the connection stayed open")


@pytest.mark.parametrize(
    "header", ["Host: localhost", "Content-Length: 2", "Content-Type: application/json", "Transfer-Encoding: chunked"]
)
def test_a_header_given_twice_is_refused(header: str, server: LocalServer) -> None:
    length = b"" if header.startswith("Content-Length") else b"Content-Length: 2\r\n"
    twice = header.encode() + b"\r\n"
    status, body = answer_to(server, POST + length + twice + twice + b"\r\n{}")
    assert status == 400
    assert "expected at most one" in json.loads(body)["error"]


def test_a_user_error_is_returned_as_a_message() -> None:
    def fail(_: object) -> Answer:
        raise CoupledQKError("the text is empty: give at least one character")

    with serving({"GET /": fail}) as server:
        status, body = answer_to(server, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (status, json.loads(body)) == (400, {"error": "the text is empty: give at least one character"})


def test_a_client_that_disconnects_causes_no_traceback(capfd: pytest.CaptureFixture[str], server: LocalServer) -> None:
    with connect(server) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # the connection is reset
        client.sendall(POST + b"Content-Length: 9\r\n\r\n12")
    assert answer_to(server, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") == (200, b"page")
    assert "Traceback" not in capfd.readouterr().err
