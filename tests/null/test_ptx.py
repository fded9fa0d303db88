"""The PTX parser on text that compilers wrote: round trips, spans, nodes, and the one error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.errors import BadInput, TilewrightError
from tilewright.ptx import (
    PtxSyntaxError,
    parse_ptx,
    parse_ptx_file,
    print_operand,
    print_ptx,
    print_statement,
)
from tilewright.ptx.cursor import Cursor
from tilewright.ptx.nodes import (
    Block,
    Declarator,
    Directive,
    Function,
    Instruction,
    Integer,
    Label,
    LocDirective,
    Memory,
    Name,
    Operand,
    Pair,
    Section,
    Sink,
    Variable,
    Vector,
)
from tilewright.ptx.parser import _module
from tilewright.ptx.source import Source
from tilewright.ptx.tokens import tokenize

DATA = Path(__file__).parents[1] / "data" / "ptx"
FILES = sorted(DATA.glob("*.ptx"))


def body_of(text: str) -> Block:
    module = parse_ptx(f".version 9.0\n.target sm_100a\n.entry k\n{{\n{text}\n}}\n", "t.ptx")
    body = module.functions[0].body
    assert body is not None
    return body


def instruction_of(text: str) -> Instruction:
    (statement,) = body_of(text).statements
    assert isinstance(statement, Instruction)
    return statement


def operand_of(text: str) -> Operand:
    return instruction_of(f"op {text};").operands[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_printed_text_parses_to_equal_nodes(path: Path) -> None:
    module = parse_ptx_file(path)
    printed = print_ptx(module)
    again = parse_ptx(printed)
    assert again == module
    assert print_ptx(again) == printed


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_whole_line_tokens_give_the_tree_of_plain_tokens(path: Path) -> None:
    module = parse_ptx_file(path)
    plain = _module(Cursor(tokenize(Source(str(path), path.read_text()))))
    assert module == plain
    for mine, theirs in zip(
        every_instruction(module.functions), every_instruction(plain.functions), strict=True
    ):
        assert mine.span == theirs.span


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_operand_span_holds_the_operand(path: Path) -> None:
    module = parse_ptx_file(path)
    for instruction in every_instruction(module.functions):
        for index, operand in enumerate(instruction.operands):
            span = instruction.operand_span(index)
            text = module.at[0].text[span.offset : span.end_offset]
            assert operand_of_text(text, instruction.opcode.root) == operand


def operand_of_text(text: str, root: str) -> Operand:
    return instruction_of(f"{root} {text};").operands[0]


def every_instruction(functions: tuple[Function, ...]) -> list[Instruction]:
    return [instruction for function in functions for instruction in function.instructions()]


def test_spans_count_lines_columns_and_offsets_from_the_text() -> None:
    text = ".version 9.0\n.target sm_90\n.entry k\n{\n\t@!%p1 add.s32 \t%r1, %r2, [%r3+4]; ret; // end\n}\n"
    module = parse_ptx(text, "dir/k.ptx")
    add, ret = every_instruction(module.functions)
    span = add.span
    assert (span.file, span.line, span.column) == ("dir/k.ptx", 5, 2)
    assert (span.end_line, span.end_column) == (5, 35)
    assert text[span.offset : span.end_offset] == add.text == "@!%p1 add.s32 \t%r1, %r2, [%r3+4];"
    assert str(add.operand_span(2)) == "dir/k.ptx:5:27"
    assert ret.span.column == 36
    assert str(module.functions[0].span) == "dir/k.ptx:3:1"
    assert module.functions[0].span.end_line == 6


def test_a_line_that_only_looks_like_an_instruction() -> None:
    module = parse_ptx(".version 9.0\n.target sm_90\n.global .b32\n\tname [4];\n.global .b32 z;")
    variable = module.items[2]
    assert isinstance(variable, Variable)
    assert variable.declarators[0].name == "name"
    assert variable.declarators[0].dimensions == (Integer(4, "4"),)


def test_module_facts() -> None:
    module = parse_ptx_file(DATA / "gemm_clc2_full.ptx")
    assert module.version == (9, 0)
    assert module.target == ("sm_100a",)
    (kernel,) = module.functions
    assert kernel.kind == ".entry"
    cluster = kernel.directive(".reqnctapercluster")
    assert cluster is not None
    assert cluster.arguments == (Integer(2, "2"), Integer(1, "1"), Integer(1, "1"))
    assert kernel.directive(".maxnreg") is None


def test_opcode_is_a_root_and_its_modifiers() -> None:
    text = (
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%r1], [%rd1, {%r2, %r3}], [bar], %rs1;"
    )
    copy = instruction_of(text)
    assert copy.opcode.root == "cp"
    assert copy.opcode.modifiers == (
        *("async", "bulk", "tensor", "2d", "shared::cluster", "global", "tile"),
        *("mbarrier::complete_tx::bytes", "multicast::cluster"),
    )
    assert copy.opcode.has("multicast::cluster", "tile")
    assert copy.operands[1] == Memory((Name("%rd1"), Vector((Name("%r2"), Name("%r3")))))
    assert (
        instruction_of("add .s32 %r1, %r2, 1;").opcode
        == instruction_of("add.s32 %r1,%r2,1;").opcode
    )


def test_guards_pairs_and_sinks() -> None:
    vote = instruction_of("@!%p1 elect.sync _|%p2, -1;")
    assert vote.guard is not None
    assert vote.guard.negated
    assert vote.guard.predicate == Name("%p1")
    assert vote.operands[0] == Pair(Sink(), Name("%p2"))
    assert instruction_of("@%up1 ret;").guard is not None


def test_base_and_offset_of_an_address() -> None:
    for text, offset in (
        ("[%rd1]", 0),
        ("[%rd1+-8]", -8),
        ("[%rd1 - 0x10]", -16),
        ("[%rd1+4+4]", 8),
    ):
        address = operand_of(text)
        assert isinstance(address, Memory)
        assert (address.base, address.offset) == (Name("%rd1"), offset)


def test_numbers() -> None:
    values = {"0x10": 16, "017": 15, "0b11": 3, "4U": 4, "0": 0, "0xFFFFFFFFFFFFFFFF": 2**64 - 1}
    for text, value in values.items():
        assert operand_of(text) == Integer(value, text)
    floats = {"0f3F800000": 1.0, "0d4000000000000000": 2.0, "1.5e-3": 0.0015, "2E3": 2000.0}
    for text, number in floats.items():
        assert getattr(operand_of(text), "value", None) == number
    assert operand_of("%tid.x") == Name("%tid", "x")


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("1+2*3", "1+(2*3)"),
        ("(1+2)*3", "(1+2)*3"),
        ("1-2-3", "(1-2)-3"),
        ("1<<2+3", "1<<(2+3)"),
        ("1|2^3&4", "1|(2^(3&4))"),
        ("!a&&b", "(!a)&&b"),
        ("a?b:c?d:e", "a ? b : (c ? d : e)"),
        ("(.s64)-1", "(.s64)(-1)"),
        ("0xff00(sym+4)", "0xff00(sym+4)"),
    ],
)
def test_operators_bind_as_in_c(text: str, printed: str) -> None:
    operand = operand_of(text)
    assert print_operand(operand) == printed
    assert operand_of(printed) == operand


def test_inner_scopes_keep_their_own_names() -> None:
    block = body_of("{ .reg .pred p; W: op.x p, [%r1]; @!p bra W; }").statements[0]
    assert isinstance(block, Block)
    register, label, *rest = block.statements
    assert isinstance(register, Variable)
    assert (register.space, register.type) == (".reg", ".pred")
    assert isinstance(label, Label)
    assert label.name == "W"
    assert print_statement(rest[1]) == "@!p bra W;"


def test_declarations() -> None:
    module = parse_ptx_file(DATA / "grammar.ptx")
    named: dict[str, tuple[Variable, Declarator]] = {
        declarator.name: (item, declarator)
        for item in module.items
        if isinstance(item, Variable)
        for declarator in item.declarators
    }
    variable, table = named["table"]
    assert (variable.space, variable.type, variable.align) == (".const", ".f32", Integer(4, "4"))
    assert table.dimensions == (Integer(2, "2"), Integer(3, "3"))
    assert isinstance(table.initializer, Vector)
    assert named["dynamic_smem"][0].linkage == ".extern"
    assert named["dynamic_smem"][1].dimensions == (None,)
    assert named["unified_value"][0].attributes[0].name == ".unified"
    assert named["vector_value"][0].vector == ".v4"
    kernel = module.functions[-1]
    assert kernel.parameters is not None
    pointer = kernel.parameters[0].pointer
    assert pointer is not None
    assert (pointer.space, pointer.align) == (".global", Integer(16, "16"))
    assert kernel.parameters[2].declarators[0].dimensions == (Integer(128, "128"),)


def test_debug_directives() -> None:
    module = parse_ptx_file(DATA / "grammar.ptx")
    body = module.functions[-1].body
    assert body is not None
    plain, inlined, _ = (item for item in body.statements if isinstance(item, LocDirective))
    assert plain.inlined_at is None
    assert inlined.function_name == Name("$L__info_string0")
    assert inlined.inlined_at == (Integer(1, "1"), Integer(20, "20"), Integer(7, "7"))
    section = next(item for item in module.items if isinstance(item, Section))
    assert section.name == ".debug_abbrev"
    assert len(section.items) == 6


def test_an_instruction_nobody_knows_is_kept() -> None:
    unknown = instruction_of("warp.drive::engage.v9 {%r1, [%r2]}, %rd1, (7, 8);")
    assert str(unknown.opcode) == "warp.drive::engage.v9"
    assert len(unknown.operands) == 3
    directive = parse_ptx(".version 9.9\n.later_than_us 1, 2;\n").items[1]
    assert isinstance(directive, Directive)
    assert directive.name == ".later_than_us"


@pytest.mark.parametrize(
    ("line", "column", "problem"),
    [
        ("add.s32 %r1 %r2;", 13, "expected `,` or `;` in `add.s32`, found `%r2`"),
        ("mov.u32 %r1, ;", 14, "expected an operand, found `;`"),
        ("mov.u32 %r1, [%r2;", 18, "expected `,` or `]` in an address, found `;`"),
        ("mov.u32 %r1, 0xZZ;", 14, "a number that is none in PTX, found `0xZZ`"),
        ("@5 ret;", 2, "expected a predicate, found `5`"),
        (".reg .b32 5;", 11, "expected the name that is declared, found `5`"),
        (".reg %r1;", 6, "expected a type such as `.b32`, found `%r1`"),
        ("§ ret;", 1, "expected an instruction, a label or a directive, found `§`"),
        ('.pragma "open;', 9, "a string that does not end on its line"),
    ],
)
def test_a_syntax_error_names_its_place(line: str, column: int, problem: str) -> None:
    with pytest.raises(PtxSyntaxError) as caught:
        body_of(line)
    error = caught.value
    assert isinstance(error, BadInput)
    assert isinstance(error, TilewrightError)
    assert problem in str(error)
    assert str(error).startswith(f"t.ptx:5:{error.span.column}: ")
    assert error.span.column == column
    assert str(error).splitlines()[1:] == [line, " " * (column - 1) + error.caret.lstrip()]


def test_an_open_brace_is_reported_where_it_opens() -> None:
    with pytest.raises(PtxSyntaxError, match=r"k\.ptx:2:1: this `\{` is never closed"):
        parse_ptx(".entry k\n{\n ret;\n", "k.ptx")


def test_nesting_without_end_is_one_error() -> None:
    for opening in (
        "{" * 5000,
        "mov.b32 %r1, " + "(" * 5000,
        "mov.b32 %r1, " + "-" * 5000,
        "op 1" + "+1" * 5000 + ";",
    ):
        with pytest.raises(PtxSyntaxError):
            body_of(opening)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot read"):
        parse_ptx_file(tmp_path / "missing.ptx")
    (tmp_path / "binary.ptx").write_bytes(b"\x7fELF\xff\xfe")
    with pytest.raises(BadInput, match="not text"):
        parse_ptx_file(tmp_path / "binary.ptx")
