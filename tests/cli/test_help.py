"""The command line teaches: every command by example, and the documentation names them all."""

from pathlib import Path

import pytest

from cosformer.cli import main
from cosformer.cli.main import COMMANDS


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_teaches_by_example(command, capsys):
    with pytest.raises(SystemExit) as left:
        main([*command.split(), "--help"])
    assert left.value.code == 0
    assert f"cosformer {command}".strip() in capsys.readouterr().out.partition("\n\n")[2]


def test_help_names_no_option_of_another_command(capsys):
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    assert "cosformer train RECIPE --print_config" in capsys.readouterr().out


def test_no_arguments_show_the_commands(capsys):
    assert main([]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in COMMANDS)


def test_the_documentation_names_every_command():
    page = (Path(__file__).parents[2] / "docs/command_line.md").read_text()
    assert all(f"| `cosformer {name}` |" in page for name in COMMANDS)
