"""What can be wrong before a server is there: one sentence, and exit code 2."""

import importlib.util
import socket

import pytest

from cosformer.cli import main


@pytest.fixture
def taken():
    """A port on which somebody else listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def said(capsys, *arguments):
    assert main(["serve", *map(str, arguments)]) == 2
    return capsys.readouterr().err


def test_a_package_that_is_missing(saved, capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else True)
    assert 'The package uvicorn is missing: pip install ".[models,serve]" in a clone.' in said(capsys, saved)


@pytest.mark.skipif(importlib.util.find_spec("uvicorn") is None, reason='needs the extra "serve"')
def test_what_was_given(saved, capsys, tmp_path, taken):
    assert "cannot be listened on: address already in use" in said(capsys, saved, "--port", taken)
    assert "cannot be listened on" in said(capsys, saved, "--host", "no.such.host.invalid")
    assert "there is no folder" in said(capsys, tmp_path / "none").lower()
    assert "has no config.json" in said(capsys, tmp_path, "--port", 0)
    assert "none.jinja does not exist" in said(capsys, saved, "--chat_template", tmp_path / "none.jinja")
    broken = tmp_path / "broken.jinja"
    broken.write_text("{% for message in messages %}")
    assert "chat template cannot be used" in said(capsys, saved, "--port", 0, "--chat_template", broken)
