"""coupledqk completion"""

import dataclasses
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ..recipes import RECIPES
from ..schema import leaves
from ..variants import PRESETS, VARIANTS
from .settings import WithSettings

VALUES: dict[str, tuple[str, ...]] = {
    "variant": tuple(VARIANTS), "variants": tuple(VARIANTS), "recipe": tuple(RECIPES), "preset": tuple(PRESETS),
}  # fmt: skip
"""Values to offer for flags that take names, by the name of the flag."""


@dataclass(frozen=True)
class Completion:
    """Print a completion script for your shell: commands, flags and the names that flags take.

    Enable it in the current shell, or permanently as described in the comments:

        eval "$(coupledqk completion bash)"                 # permanently: add this line to ~/.bashrc
        eval "$(coupledqk completion zsh)"                  # permanently: add this line to ~/.zshrc, below compinit
        coupledqk completion fish | source                  # or > ~/.config/fish/completions/coupledqk.fish
    """

    shell: Literal["bash", "zsh", "fish"]
    """Shell to write the script for."""

    def run(self) -> None:
        from . import COMMANDS

        words = {name: _Words.of(name, command) for name, command in COMMANDS.items()}
        print({"bash": _bash, "zsh": _zsh, "fish": _fish}[self.shell](words))


@dataclass(frozen=True)
class _Words:
    """The words that can follow the name of a command."""

    about: str
    flags: dict[str, tuple[str, ...]]
    """Values to offer by flag; empty for a flag that takes any value or a file."""
    names: tuple[str, ...]
    """Values of positional arguments."""

    @classmethod
    def of(cls, name: str, command: type[Any]) -> "_Words":
        types = typing.get_type_hints(command)
        flags: dict[str, tuple[str, ...]] = {"--help": ()}
        names = _experiments() if name == "reproduce" else ()
        for field in dataclasses.fields(command):
            choices = VALUES.get(field.name) or _choices(types[field.name])
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                names += choices
            else:
                flags[f"--{field.name.replace('_', '-')}"] = choices
        if issubclass(command, WithSettings):
            settings = (path.rpartition(".")[2].replace("_", "-") for path in leaves(RECIPES["nano"]))
            flags |= {f"--{setting}": () for setting in settings if f"--{setting}" not in flags}
        return cls((command.__doc__ or "").splitlines()[0], flags, tuple(names))


def _choices(kind: Any) -> tuple[str, ...]:
    """The values of a Literal, including one inside an Optional or a tuple."""
    if typing.get_origin(kind) is Literal:
        return tuple(str(value) for value in typing.get_args(kind))
    return tuple(choice for part in typing.get_args(kind) for choice in _choices(part))


def _experiments() -> tuple[str, ...]:
    from ..lab.experiment import names

    return ("all", *names())


def _bash(commands: dict[str, _Words]) -> str:
    return "\n".join(
        [
            "_coupledqk() {",
            '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" values=""',
            '    if [ "$COMP_CWORD" -eq 1 ]; then',
            f"        values={_quoted(commands)}",
            "    else",
            *_shell_cases(commands, '"${COMP_WORDS[1]}"', '"$before"'),
            "    fi",
            '    COMPREPLY=($(compgen -W "$values" -- "$word"))',
            "}",
            "complete -o bashdefault -o default -F _coupledqk coupledqk",
        ]
    )


def _zsh(commands: dict[str, _Words]) -> str:
    return "\n".join(
        [
            "_coupledqk() {",
            '    local before="${words[CURRENT-1]}" values=""',
            "    if (( CURRENT == 2 )); then",
            f"        values={_quoted(commands)}",
            "    else",
            *_shell_cases(commands, '"${words[2]}"', '"$before"'),
            "    fi",
            "    compadd -- ${=values}",
            '    [[ "${words[CURRENT]}" == -* ]] || (( CURRENT == 2 )) || _files',
            "}",
            "compdef _coupledqk coupledqk",
        ]
    )


def _shell_cases(commands: dict[str, _Words], command: str, before: str) -> Iterable[str]:
    """Lines that set `values` from the command and, if its values are known, from the flag before the cursor."""
    yield f"        case {command} in"
    for name, words in commands.items():
        yield f"            {name})"
        yield f"                case {before} in"
        for flag, values in words.flags.items():
            if values:
                yield f"                    {flag}) values={_quoted(values)} ;;"
        yield f"                    *) values={_quoted([*words.flags, *words.names])} ;;"
        yield "                esac ;;"
    yield "        esac"


def _quoted(words: Iterable[str]) -> str:
    return f"'{' '.join(words)}'"


def _fish(commands: dict[str, _Words]) -> str:
    lines = []
    for name, words in commands.items():
        about = words.about.replace("\\", "\\\\").replace("'", "\\'")
        lines.append(f"complete -c coupledqk -f -n __fish_use_subcommand -a {name} -d '{about}'")
        here = f"complete -c coupledqk -n '__fish_seen_subcommand_from {name}'"
        for flag, values in words.flags.items():
            lines.append(f"{here} -l {flag.removeprefix('--')}" + (f" -x -a {_quoted(values)}" if values else ""))
        if words.names:
            lines.append(f"{here} -a {_quoted(words.names)}")
    return "\n".join(lines)
