"""A jinja2 environment in which a stranger's template can neither reach Python nor run away.

Enters: template text out of a model file. Leaves: the environment that chat templates expect (block trimming, loop
controls, `raise_exception`, `strftime_now`, plain `tojson`), on jinja2's immutable sandbox, with every loop turn and
call counted and every operation that could grow at once measured (`limits`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from jinja2 import TemplateRuntimeError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from polyseq.tokenizer import limits

MAX_STEPS = 200_000  # loop turns and calls of one rendering

_BUDGET = "polyseq_budget"


class Budget:
    """Steps that one rendering may still take. Its underscored names are out of a template's reach."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MAX_STEPS

    def _spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise SecurityError(f"more than {MAX_STEPS} steps")


class GenerationBlock(Extension):
    """`{% generation %}`: marks what the assistant said, for training; here it renders what is in it."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own interface)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Pure. The nodes between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox. It raises jinja2's errors, SecurityError among them."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols])
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        self.filters["tojson"] = _tojson
        self.filters = {name: _measured(name, function) for name, function in self.filters.items()}
        self.filters.update(polyseq_counted=_counted, polyseq_short=limits.check_size)

    def counted(self, source: str) -> nodes.Template:
        """Pure. The parsed template with every loop counted and every `~` measured."""
        template = self.parse(source)
        for loop in list(template.find_all(nodes.For)):
            loop.iter = _filtered(loop.iter, "polyseq_counted")
        for concat in list(template.find_all(nodes.Concat)):
            concat.nodes = [_filtered(nodes.Concat(concat.nodes, lineno=concat.lineno), "polyseq_short")]
        return template

    def call(self, context: Context, obj: object, /, *args: object, **kwargs: object) -> object:
        """Calls of a template, counted; methods of str measured before they run."""
        _spend(context)
        # The sandbox hands out str.format wrapped in a function of its own.
        method = getattr(obj, "__wrapped__", obj)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            _check_call(getattr(method, "__name__", ""), (owner, *args), kwargs)
        return limits.check_size(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """Operators, measured before they run."""
        limits.check_operator(operator, left, right)
        return limits.check_size(super().call_binop(context, operator, left, right))


def budget() -> dict[str, Budget]:
    """Pure. The variable that a rendering must be given."""
    return {_BUDGET: Budget()}


def _spend(context: Context) -> None:
    # `parent` is out of reach of the template's own assignments.
    held = context.parent.get(_BUDGET)
    if not isinstance(held, Budget):
        raise SecurityError("rendering without a budget")
    held._spend()


@pass_context
def _counted(context: Context, items: Iterable[object]) -> Iterator[object]:
    for item in items:
        _spend(context)
        yield item


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _measured(name: str, function: Callable[..., object]) -> Callable[..., object]:
    """Pure. A filter that is measured before it runs and after; jinja2's marks on it stay."""
    # jinja2 gives a marked filter its context or environment first.
    skip = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def measured(*args: object, **kwargs: object) -> object:
        values = args[skip:]
        if name == "join" and values and not isinstance(values[0], str):
            # The items are listed once, so that measuring does not use up an iterator.
            values = (_listed(values[0]), values[1] if len(values) > 1 else kwargs.get("d", ""), *values[2:])
            kwargs.pop("d", None)
        _check_call("join of" if name == "join" else name, values, kwargs)
        return limits.check_size(function(*args[:skip], *values, **kwargs))

    return measured


def _listed(items: object) -> object:
    return list(items) if isinstance(items, Iterable) else items


def _check_call(name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Pure. Refuses a filter or method of str that would make something huge; `args[0]` is what it works on."""
    limits.check_numbers((*args[1:], *kwargs.values()))
    if name in ("format", "format_map"):
        limits.check_widths(args[0])
    elif name == "join" and len(args) > 1:
        limits.check_join(args[0], args[1])
    elif name == "join of" and len(args) > 1:
        limits.check_join(args[1], args[0])
    elif name == "replace" and len(args) > 2:
        limits.check_replace(args[0], args[1], args[2])


def _raise_exception(message: object) -> object:
    raise TemplateRuntimeError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
