"""Where a file can be changed so that it means something else: one small change of its syntax tree at a time.

Rules of this file
- A change replaces a piece of the text by another; everything else stays as it is, comments included.
- Comparisons are moved by one and turned round, arithmetic is turned round, `and` and `or`, `min` and `max`, `any`
  and `all` are swapped, conditions are negated, constants are moved, statements that only have an effect are left
  out, and functions that return nothing return at once.
- Not changed: types, docstrings, texts, asserts, `__all__`, `__slots__`, f-strings, protocols, and functions that
  only check (`validate`): a weaker check fails no test, by its nature.
- A change has a name that does not depend on line numbers: file, function, what was there and what is there now.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Mutant", "mutants_of"]

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Add,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Pow: ast.Mult,
}
_SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}
_UNTOUCHED_NAMES = ("__all__", "__slots__")
_UNTOUCHED_FUNCTIONS = ("validate", "__repr__", "__str__")


class Mutant(NamedTuple):
    """One change."""

    file: str
    #: Where it is: dotted name of class and function, empty for the module itself.
    function: str
    #: First and last line of the statement, for the tests that reach it.
    lines: tuple[int, int]
    #: Names that the statement defines, if it is one of a module or a class: who uses them is reached by it.
    defines: tuple[str, ...]
    old: str
    new: str
    #: Which of several alike in one function.
    number: int
    #: The whole file, changed.
    text: str

    @property
    def ident(self) -> str:
        """The same for the same change in a file whose other parts have changed."""
        parts = (self.file, self.function, self.old, self.new, str(self.number))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]


def mutants_of(file: str, text: str) -> list[Mutant]:
    """All changes of a file."""
    found: list[Mutant] = []
    seen: dict[tuple[str, str, str], int] = {}
    source = _Source(text)
    for place in _Walk(source).changes(ast.parse(text)):
        key = (place.function, place.old, place.new)
        number = seen[key] = seen.get(key, -1) + 1
        changed = source.replaced(place.span, place.new)
        found.append(Mutant(file, place.function, place.lines, place.defines, place.old, place.new, number, changed))
    return found


class _Place(NamedTuple):
    function: str
    lines: tuple[int, int]
    defines: tuple[str, ...]
    span: tuple[int, int]
    old: str
    new: str


class _Source:
    """Text by the offsets of the syntax tree, which count bytes."""

    def __init__(self, text: str) -> None:
        self._bytes = text.encode()
        self._starts = [0]
        for line in self._bytes.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[
            node.end_lineno - 1
        ] + node.end_col_offset

    def at(self, span: tuple[int, int]) -> str:
        return self._bytes[span[0] : span[1]].decode()

    def replaced(self, span: tuple[int, int], new: str) -> str:
        return (self._bytes[: span[0]] + new.encode() + self._bytes[span[1] :]).decode()


class _Walk:
    """Goes through a file and says what can be changed where."""

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._scope: list[str] = []
        self._lines = (0, 0)
        self._defines: tuple[str, ...] = ()

    def changes(self, tree: ast.Module) -> Iterator[_Place]:
        for statement in tree.body:
            yield from self._statement(statement, outer=True)

    def _place(self, node: ast.expr | ast.stmt, new: str) -> _Place:
        span = self._source.span(node)
        return _Place(".".join(self._scope), self._lines, self._defines, span, self._source.at(span), new)

    # -- statements -------------------------------------------------------------------------------------------------

    def _statement(self, node: ast.stmt, *, outer: bool = False) -> Iterator[_Place]:
        if isinstance(node, ast.ClassDef):
            if not any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases):
                self._scope.append(node.name)
                for statement in node.body:
                    yield from self._statement(statement, outer=True)
                self._scope.pop()
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from self._function(node)
            return
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert | ast.Pass | ast.Raise | ast.Global):
            return
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # a docstring, or "..."
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._defines = _defined(node) if outer else ()
        if any(name in _UNTOUCHED_NAMES for name in self._defines):
            return
        header = getattr(node, "body", None)
        last = header[0].lineno - 1 if header else (node.end_lineno or node.lineno)
        self._lines = (node.lineno, max(node.lineno, last))
        if not outer:
            yield from self._left_out(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr) and child is not getattr(node, "annotation", None):
                yield from self._expression(child)
        if isinstance(node, ast.If | ast.While) and not isinstance(node.test, ast.Compare):  # that was turned round
            yield self._place(node.test, f"not ({ast.unparse(node.test)})")
        for block in ("body", "orelse", "finalbody"):
            for statement in getattr(node, block, ()):
                yield from self._statement(statement)
        for handler in getattr(node, "handlers", ()):
            for statement in handler.body:
                yield from self._statement(statement)
        for case in getattr(node, "cases", ()):
            for statement in case.body:
                yield from self._statement(statement)

    def _left_out(self, node: ast.stmt) -> Iterator[_Place]:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield self._place(node, "pass")
        elif isinstance(node, ast.Assign) and all(isinstance(t, ast.Attribute | ast.Subscript) for t in node.targets):
            if self._scope[-1:] != ["__init__"]:  # without a field everything fails, which says nothing
                yield self._place(node, "pass")
        elif isinstance(node, ast.Delete):
            yield self._place(node, "pass")
        elif isinstance(node, ast.Continue):
            yield self._place(node, "break")
        elif isinstance(node, ast.Break):
            yield self._place(node, "continue")
        elif isinstance(node, ast.AugAssign) and type(node.op) in _ARITHMETIC:
            turned = ast.AugAssign(node.target, _ARITHMETIC[type(node.op)](), node.value)
            yield self._place(node, ast.unparse(turned))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[_Place]:
        if node.name in _UNTOUCHED_FUNCTIONS:
            return
        self._scope.append(node.name)
        self._defines = ()
        self._lines = (node.body[0].lineno, node.end_lineno or node.lineno)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                yield from self._expression(default)
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        nothing = isinstance(node.returns, ast.Constant) and node.returns.value is None
        if nothing and node.name != "__init__" and body and not isinstance(body[0], ast.Pass):
            self._lines = (body[0].lineno, body[-1].end_lineno or body[-1].lineno)
            span = self._source.span(body[0])
            span = (span[0], span[0])
            yield _Place(".".join(self._scope), self._lines, (), span, "", "return\n" + " " * body[0].col_offset)
        for statement in body:
            yield from self._statement(statement)
        self._scope.pop()

    # -- expressions ------------------------------------------------------------------------------------------------

    def _expression(self, node: ast.expr) -> Iterator[_Place]:
        if isinstance(node, ast.JoinedStr):
            return
        yield from self._changed(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from self._expression(child)
            elif isinstance(child, ast.keyword):
                yield from self._expression(child.value)
            elif isinstance(child, ast.comprehension):
                yield from self._expression(child.iter)
                for test in child.ifs:
                    if not isinstance(test, ast.Compare):
                        yield self._place(test, f"(not ({ast.unparse(test)}))")
                    yield from self._expression(test)
            elif isinstance(child, ast.arguments):
                for default in (*child.defaults, *child.kw_defaults):
                    if default is not None:
                        yield from self._expression(default)

    def _changed(self, node: ast.expr) -> Iterator[_Place]:
        if isinstance(node, ast.Compare):
            for at, op in enumerate(node.ops):
                for other in _COMPARISONS[type(op)]:
                    ops = [*node.ops[:at], other(), *node.ops[at + 1 :]]
                    yield self._place(node, f"({ast.unparse(ast.Compare(node.left, ops, node.comparators))})")
        elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            turned: ast.expr = ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
            yield self._place(node, f"({ast.unparse(turned)})")
        elif isinstance(node, ast.BoolOp):
            swapped = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
            yield self._place(node, f"({ast.unparse(ast.BoolOp(swapped, node.values))})")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            if not (isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)):
                yield self._place(node, f"({ast.unparse(node.operand)})")
        elif isinstance(node, ast.IfExp):
            turned = ast.IfExp(node.test, node.orelse, node.body)
            yield self._place(node, f"({ast.unparse(turned)})")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _SWAPPED:
            swapped_call = ast.Call(ast.Name(_SWAPPED[node.func.id]), node.args, node.keywords)
            yield self._place(node, ast.unparse(swapped_call))
        elif isinstance(node, ast.Constant):
            value = node.value
            if isinstance(value, bool):
                yield self._place(node, str(not value))
            elif isinstance(value, int):
                yield self._place(node, str(value + 1))
                if value > 1:
                    yield self._place(node, str(value - 1))
            elif isinstance(value, float):
                yield self._place(node, repr(value * 2 if value else 1.0))


def _defined(node: ast.stmt) -> tuple[str, ...]:
    if isinstance(node, ast.Assign):
        return tuple(n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name))
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return (node.target.id,)
    return ()
