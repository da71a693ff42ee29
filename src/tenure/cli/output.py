"""The one place where commands write. Stored data cannot control the terminal.

Names, reasons, errors and results come from jobs, and may hold anything: escape sequences, bells,
marks that reverse the direction of text, line breaks. Whatever is not printable becomes a space, in
a terminal and in a pipe. In JSON it is escaped, so that a reader gets the value unchanged. Only
`style` adds escape sequences, by marks that no stored text can contain.
"""

import os
import re

import click

_MARK = f"\0{os.urandom(8).hex()}"
_STYLED = re.compile(rf"{_MARK}([0-9;]*)m")
_SGR = re.compile(r"\x1b\[([0-9;]*)m")


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Write one line. A line break in the text becomes a space."""
    click.echo(rendered(text), err=err, nl=nl)


def write_json(value: object, *, err: bool = False) -> None:
    """Write one value on one line, as JSON."""
    import json

    import msgspec

    try:
        text = json.dumps(msgspec.to_builtins(value), ensure_ascii=False)
    except TypeError:  # a part of it is a msgspec.Raw
        text = msgspec.json.encode(value).decode()
    click.echo(text if text.isprintable() else "".join(map(_escaped, text)), err=err)


def style(
    text: str, *, fg: str | None = None, bold: bool | None = None, dim: bool | None = None
) -> str:
    """The text in this colour. `echo` writes the colour, or leaves it out without a terminal."""
    return _SGR.sub(rf"{_MARK}\1m", click.style(clean(text), fg=fg, bold=bold, dim=dim))


def unstyled(text: str) -> str:
    """The text without the marks of `style`."""
    return _STYLED.sub("", text)


def rendered(text: str) -> str:
    """The line as the terminal gets it: our styles, and no other control character."""
    if text.isprintable():
        return text
    *parts, last = _STYLED.split(text)
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return "".join(f"{clean(data)}\x1b[{code}m" for data, code in pairs) + clean(last)


def clean(text: str) -> str:
    """One line without control characters."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def _escaped(letter: str) -> str:
    if letter.isprintable():
        return letter
    import json

    return json.dumps(letter)[1:-1]
