"""The syntax tree back to PTX text, one statement a line; `parse_ptx(print_ptx(module)) == module`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.ptx.nodes import (
    Apply,
    Assigned,
    Attribute,
    Binary,
    Block,
    Conditional,
    Declarator,
    Directive,
    FileDirective,
    Float,
    Function,
    Group,
    Index,
    Instruction,
    Integer,
    Label,
    LocDirective,
    Memory,
    Module,
    Name,
    Operand,
    Pair,
    Prototype,
    Section,
    SectionData,
    Sink,
    Statement,
    String,
    Unary,
    Variable,
    Vector,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_WITHOUT_SEMICOLON = frozenset({".version", ".target", ".address_size"})


def print_ptx(module: Module) -> str:
    """The text of a whole module."""
    return "".join(f"{line}\n" for item in module.items for line in _item_lines(item))


def print_statement(statement: Statement | Function) -> str:
    """The text of one statement, several lines if it has a body."""
    return "\n".join(_item_lines(statement))


def print_operand(operand: Operand) -> str:  # noqa: C901, PLR0911, PLR0912 - one line a kind
    """The text of one operand."""
    match operand:
        case Name(name, component):
            return f"{name}.{component}" if component else name
        case Integer(_, text) | Float(text):
            return text
        case Memory(parts):
            return f"[{_list(parts)}]"
        case Vector(elements):
            return f"{{{_list(elements)}}}"
        case Sink():
            return "_"
        case Pair(first, second):
            return f"{print_operand(first)}|{print_operand(second)}"
        case Group(elements):
            return f"({_list(elements)})"
        case String(text):
            return f'"{text}"'
        case Unary(operator, inner):
            return f"{operator}{_inner(inner)}"
        case Binary(operator, left, right):
            return f"{_inner(left)}{operator}{_inner(right)}"
        case Conditional(condition, yes, no):
            return f"{_inner(condition)} ? {_inner(yes)} : {_inner(no)}"
        case Apply(function, argument):
            return f"{print_operand(function)}({print_operand(argument)})"
        case Index(base, index):
            return f"{print_operand(base)}[{print_operand(index)}]"
        case Assigned(name, value):
            return f"{name} = {print_operand(value)}"


def _inner(operand: Operand) -> str:
    """An operand under an operator: in brackets if it has an operator itself."""
    text = print_operand(operand)
    return f"({text})" if isinstance(operand, Unary | Binary | Conditional) else text


def _list(operands: Iterable[Operand]) -> str:
    return ", ".join(map(print_operand, operands))


def _item_lines(item: Statement | Function) -> Iterator[str]:
    match item:
        case Function():
            yield from _function_lines(item)
        case Section(name=name, items=items):
            yield f".section {name} {{"
            yield from (_section_line(entry) for entry in items)
            yield "}"
        case Block(statements=statements):
            yield "{"
            for statement in statements:
                yield from _item_lines(statement)
            yield "}"
        case _:
            yield _line(item)


def _line(  # noqa: PLR0911 - one line a kind of statement
    item: Instruction | Label | Variable | Directive | FileDirective | LocDirective | Prototype,
) -> str:
    match item:
        case Instruction():
            return _instruction(item)
        case Label(name=name):
            return f"{name}:"
        case Variable(declarators=declarators):
            return f"{_specifiers(item)} {', '.join(map(_declarator, declarators))};"
        case Directive(name=name):
            return _directive(item) + ("" if name in _WITHOUT_SEMICOLON else ";")
        case FileDirective(number=number, path=path, stamp=stamp):
            rest = "".join(f", {print_operand(value)}" for value in stamp)
            return f".file {print_operand(number)} {print_operand(path)}{rest}"
        case LocDirective():
            return _loc(item)
        case Prototype():
            return _prototype(item)


def _instruction(item: Instruction) -> str:
    guard = ""
    if item.guard is not None:
        guard = f"@{'!' if item.guard.negated else ''}{print_operand(item.guard.predicate)} "
    operands = f" {_list(item.operands)}" if item.operands else ""
    return f"{guard}{item.opcode}{operands};"


def _directive(item: Directive) -> str:
    return f"{item.name} {_list(item.arguments)}" if item.arguments else item.name


def _loc(item: LocDirective) -> str:
    text = ".loc " + " ".join(map(print_operand, item.position))
    if item.function_name is not None:
        text += f", function_name {print_operand(item.function_name)}"
    if item.inlined_at is not None:
        text += ", inlined_at " + " ".join(map(print_operand, item.inlined_at))
    return text


def _section_line(item: SectionData | Label) -> str:
    if isinstance(item, Label):
        return f"{item.name}:"
    return f"{item.type} {_list(item.values)}"


def _specifiers(item: Variable) -> str:
    words = [item.linkage, item.space]
    words += [f".attribute({_attribute(attribute)})" for attribute in item.attributes]
    if item.align is not None:
        words.append(f".align {print_operand(item.align)}")
    words += [item.vector, item.type]
    if item.pointer is not None:
        words += [".ptr", item.pointer.space]
        if item.pointer.align is not None:
            words.append(f".align {print_operand(item.pointer.align)}")
    return " ".join(filter(None, words))


def _attribute(attribute: Attribute) -> str:
    return attribute.name + (f"({_list(attribute.arguments)})" if attribute.arguments else "")


def _declarator(item: Declarator) -> str:
    text = item.name
    if item.count is not None:
        text += f"<{print_operand(item.count)}>"
    for size in item.dimensions:
        text += f"[{print_operand(size) if size is not None else ''}]"
    return text if item.initializer is None else f"{text} = {print_operand(item.initializer)}"


def _parameters(parameters: tuple[Variable, ...]) -> str:
    texts = (f"{_specifiers(item)} {_declarator(item.declarators[0])}" for item in parameters)
    return f"({', '.join(texts)})"


def _prototype(item: Prototype) -> str:
    directives = "".join(f" {_directive(directive)}" for directive in item.directives)
    results = f"{_parameters(item.results)} " if item.results else ""
    return f".callprototype {results}{item.name} {_parameters(item.parameters)}{directives};"


def _function_lines(item: Function) -> Iterator[str]:
    words = [item.linkage, item.kind]
    words += [f".attribute({_attribute(attribute)})" for attribute in item.attributes]
    words.append(_parameters(item.results) if item.results else "")
    words.append(item.name)
    words.append("" if item.parameters is None else _parameters(item.parameters))
    yield " ".join(filter(None, words))
    for directive in item.directives:
        yield _directive(directive) + (";" if directive.name == ".pragma" else "")
    if item.body is None:
        yield ";"
    else:
        yield from _item_lines(item.body)
