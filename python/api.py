"""Writes docs/guide/python-api.md from the docstrings: `python python/api.py > docs/guide/python-api.md`, with the package installed."""

from __future__ import annotations

import inspect
import re
from textwrap import dedent
from typing import Callable

import towpath
import towpath.aio

HEAD = """# Python API

Of `from towpath import ...`; [the guide](python.md) shows how to use it. Made from the docstrings by `python/api.py`.
"""


def signature(thing: Callable[..., object], name: str) -> str:
    text = str(inspect.signature(thing))
    # Annotations are strings, some with the names of modules.
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    text = re.sub(r"\b(?:[a-z_]+\.)+(?=_?[A-Z])", "", text)
    text = re.sub(r"\(self(?:, )?", "(", text)
    if len(name + text) > 120:
        inner, _, returned = text[1:].rpartition(")")
        text = "(\n    " + re.sub(r", (?=\w+: |\*)", ",\n    ", inner) + ",\n)" + returned
    return f"```python\n{name}{text}\n```\n"


def document(thing: object) -> str:
    text = inspect.getdoc(thing) or ""
    # Examples are indented in docstrings.
    return re.sub(r"\n\n((?:    .*\n?|\n)+)", lambda found: "\n\n```python\n" + dedent(found[1]).strip() + "\n```\n", text) + "\n"


def members(kind: type) -> "list[tuple[str, object]]":
    # In the order of the source.
    named = [(name, value) for name, value in vars(kind).items() if not name.startswith("_")]
    return [(name, getattr(value, "__func__", value)) for name, value in named if value.__doc__ and not isinstance(value, (int, str))]


def page() -> str:
    lines = [HEAD]
    public = [(name, getattr(towpath, name)) for name in towpath.__all__]
    errors = [(name, thing) for name, thing in public if isinstance(thing, type) and issubclass(thing, Exception)]
    for prefix, things in [("", [pair for pair in public if pair not in errors]), ("aio.", [(n, getattr(towpath.aio, n)) for n in towpath.aio.__all__])]:
        for name, thing in things:
            if not callable(thing):
                continue
            lines.append(f"## {prefix}{name}\n")
            lines += [signature(thing, name), document(thing)]
            if inspect.isclass(thing):
                for member, value in members(thing):
                    lines.append(f"### {prefix}{name}.{member}\n")
                    lines += [signature(value, member) if callable(value) else "", document(value)]
    lines.append("## Errors\n\n| class | of | |\n|---|---|---|")
    lines += [f"| `{name}` | `{error.__base__.__name__}` | {' '.join((inspect.getdoc(error) or '').split())} |" for name, error in errors]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


if __name__ == "__main__":
    print(page(), end="")
