"""Each public form, in each kind of file, is read as the same conversation is in ours, or refused by name."""

import csv
import io
import json
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from example_counts import examples
from file_begins import BEGINS
from modelyard import Platform, open_platform
from modelyard.cli import main
from modelyard.errors import InvalidInput
from modelyard.formats.training_data import DATASETS, EXAMPLES, GROUPS, PREFERENCES
from modelyard.parts.readers.files import reading_any_form
from modelyard.parts.readers.forms import FORMS

Row = dict[str, Any]
READ = reading_any_form(DATASETS)


def said(role: str, content: str) -> Row:
    return {"role": role, "content": content}


def turn(name: str, value: str) -> Row:
    return {"from": name, "value": value}


letters = st.characters(codec="utf-8", exclude_characters="\0")
texts = st.text(letters, min_size=1, max_size=20)
pairs = st.lists(st.tuples(texts, texts), min_size=1, max_size=3)


def of_conversation(pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[Row, Row]]:
    """Rows of one conversation in the public forms, each with the row in ours."""
    whole = [said(role, text) for pair in pairs for role, text in zip(("user", "assistant"), pair, strict=True)]
    ours = {"messages": whole}
    (*before, (question, answer)) = pairs
    yield {"conversations": whole}, ours
    named = [turn({"user": "human", "assistant": "gpt"}[one["role"]], one["content"]) for one in whole]
    yield {"conversations": named}, ours
    yield {"instruction": question, "input": "", "output": answer, "history": [list(one) for one in before]}, ours
    masked = [{**one, "weight": 0} if one["role"] == "assistant" else one for one in whole[:-1]]
    yield {"prompt": whole[:-1], "completion": whole[-1:]}, {"messages": [*masked, whole[-1]]}
    if not before:
        yield {"prompt": question, "completion": answer}, ours
        yield {"instruction": question, "output": answer}, ours


def of_preference(pairs: Sequence[tuple[str, str]], worse: str) -> Iterator[tuple[Row, Row]]:
    whole = [said(role, text) for pair in pairs for role, text in zip(("user", "assistant"), pair, strict=True)]
    asked, good, bad = whole[:-1], whole[-1], said("assistant", worse)
    ours = {"messages": asked, "chosen": good, "rejected": bad}
    yield {"prompt": asked, "chosen": [good], "rejected": [bad]}, ours
    yield {"prompt": asked, "chosen": whole, "rejected": [*asked, bad]}, ours
    yield {"chosen": whole, "rejected": [*asked, bad]}, ours
    yield {"input": {"messages": asked}, "preferred_output": [good], "non_preferred_output": [bad]}, ours
    named = [turn({"user": "human", "assistant": "gpt"}[one["role"]], one["content"]) for one in asked]
    (*before, (question, answer)) = pairs
    yield {"conversations": named, "chosen": turn("gpt", answer), "rejected": turn("gpt", worse)}, ours
    history = [list(one) for one in before]
    yield {"instruction": question, "history": history, "chosen": answer, "rejected": worse}, ours
    if not before:
        yield {"prompt": question, "chosen": answer, "rejected": worse}, ours
        yield {"prompt": question, "chosen": whole, "rejected": [*asked, bad]}, ours


@examples(30)
@given(pairs)
def test_a_conversation_is_the_same_in_every_form(pairs: Sequence[tuple[str, str]]) -> None:
    for row, ours in of_conversation(pairs):
        assert READ.of(row) == DATASETS.of(ours), row
        assert reading_any_form(EXAMPLES).of(row) == DATASETS.of(ours)


@examples(30)
@given(pairs, texts)
def test_a_preference_is_the_same_in_every_form(pairs: Sequence[tuple[str, str]], worse: str) -> None:
    if worse == pairs[-1][1]:
        worse += "?"
    for row, ours in of_preference(pairs, worse):
        assert READ.of(row) == DATASETS.of(ours), row
        assert reading_any_form(PREFERENCES).of(row) == DATASETS.of(ours)


def test_a_dialogue_in_one_text_is_a_preference() -> None:
    start = "\n\nHuman: hi\n\nAssistant: hello\n\nHuman: and?\n\nAssistant:"
    found = READ.of({"chosen": f"{start} yes", "rejected": f"{start} no"})
    asked = [said("user", "hi"), said("assistant", "hello"), said("user", "and?")]
    assert found == DATASETS.of({"messages": asked, "chosen": "yes", "rejected": "no"})


def test_alpaca_has_its_input_and_its_system() -> None:
    row = {"instruction": "Add.", "input": "1 and 2", "output": "3", "system": "Count.", "text": "Below is ..."}
    whole = [said("system", "Count."), said("user", "Add.\n\n1 and 2"), said("assistant", "3")]
    assert READ.of(row) == DATASETS.of({"messages": whole})


# ---- what is unclear


UNCLEAR = {
    "question and answer": ({"question": "a", "answer": "b"}, "rename answer to completion and question to prompt"),
    "no completion": ({"prompt": "a"}, "add completion"),
    "blanks": (
        {"prompt": "a", " completion": "b"},
        "the nearest is prompt and completion: rename ' completion' to completion",
    ),
    "another name": ({"dialogue": []}, "the nearest is messages: rename dialogue to messages"),
    "two forms": ({"prompt": "a", "completion": "b", "instruction": "a", "output": "b"}, "can be read as"),
    "two sorts": ({"prompt": "a", "completion": "b", "chosen": "b", "rejected": "c"}, "can be read as"),
    "unpaired": ({"prompt": "a", "completion": "b", "label": True}, "is an unpaired preference"),
    "plain": ({"text": "a"}, "is plain text"),
    "tokens": ({"input_ids": [1]}, "is tokens"),
    "no prompt": (
        {"chosen": "It is blue.", "rejected": "It is red."},
        "messages: is required, or prompt: where the answer begins",
    ),
    "a call": ({"conversations": [turn("human", "a"), turn("function_call", "{}")]}, "have no ids"),
    "who": ({"conversations": [turn("human", "a"), turn("bard", "b")]}, "must be one of"),
    "mixed": ({"prompt": "a", "completion": [said("assistant", "b")]}, "of the kind of prompt"),
    "two prompts": (
        {
            "chosen": [said("user", "a"), said("assistant", "x")],
            "rejected": [said("user", "b"), said("assistant", "y")],
        },
        "in the last answer alone",
    ),
    "nothing known": ({"foo": 1}, "the forms that are read are: messages;"),
    "no object": (5, "mapping|object"),
}


@each_case(("row", "why"), [*UNCLEAR.values()], ids=[*UNCLEAR])
def test_what_is_unclear_is_refused_by_name(row: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        READ.of(row)


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["a", "human", "gpt", "user", "assistant", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "from", "value", "messages", "weight"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
members = st.sampled_from(sorted({name for form in FORMS for name in (*form.needs, *form.takes)}))


@pytest.mark.slow
@examples(200)
@given(st.dictionaries(members, anything, max_size=5))
def test_any_row_is_read_or_refused(row: Row) -> None:
    try:
        READ.of(row)
    except InvalidInput as wrong:
        assert all(problem.msg for problem in wrong.problems)


# ---- files


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform(project="desk") as platform:
        yield platform


def uploaded(platform: Platform, path: Path) -> Sequence[Row]:
    dataset = platform.training.upload("rows", path)
    with platform._runtime.artifacts.open(dataset.artifact) as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize("begin", ["", "\ufeff", "\n \n"])
@examples(10)
@given(rows=st.lists(st.tuples(texts, texts), min_size=1, max_size=5))
def test_a_file_is_read_in_every_kind(rows: Sequence[tuple[str, str]], begin: str, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("files")
    plain = [{"prompt": question, "completion": answer} for question, answer in rows]
    ours = [{"messages": [said("user", question), said("assistant", answer)]} for question, answer in rows]
    (folder / "a.json").write_text(begin + json.dumps(plain, indent=2), encoding="utf-8")
    (folder / "a.data").write_text(begin + json.dumps(plain), encoding="utf-8")
    kinds = ["a.json", "a.data"]
    if "\ufeff" not in begin:
        (folder / "a.jsonl").write_text(begin + "\n".join(map(json.dumps, plain)), encoding="utf-8")
        kinds.append("a.jsonl")
    if not begin.strip("\ufeff") and all(map(all, rows)):
        with open(folder / "a.csv", "w", encoding="utf-8", newline="") as file:
            file.write(begin)
            table = csv.DictWriter(file, ["prompt", "completion"])
            table.writeheader()
            table.writerows(plain)
        kinds.append("a.csv")
    with open_platform(project="desk") as platform:
        for kind in kinds:
            assert uploaded(platform, folder / kind) == ours, kind


BROKEN = {
    "a.csv": ('prompt,completion\na,"b\nc"\n\nd\n', "line.5: has 1 cells.*; in a.csv"),
    "blanks.csv": (
        "Prompt, Answer\na, b\n",
        r"line\.2: is in no form .*: rename ' Answer' to completion and Prompt to prompt",
    ),
    "b.csv": ("question,answer\na,b\n", "line.2: is in no form .*rename answer to completion.*; in b.csv"),
    "a.tsv": ("prompt\tcompletion\n", "a table with tabs.*in a.tsv"),
    "a.txt": ("prompt,completion\n", "line.1: is not valid JSON.*does not end in .csv"),
    "a.json": ('[{"prompt": "a", "completion": "b"},\n\n {"prompt": "a"}]', "line.3: .*add completion; in a.json"),
    "b.json": ('[{"prompt": "a", "completion": "b"}\n', "line.2: is not valid JSON.*; in b.json"),
    "c.json": ('[]\n{"prompt": "a"}', "line.2: .*something follows.*; in c.json"),
    "d.json": ('{\n "prompt": "a"}', "line.1: .*an object over several lines.*; in d.json"),
    "e.json": ("[\n5]", "line.2: .*; in e.json"),
    "a.jsonl": ('{"prompt": "a", "completion": "b"}\n{"text": "a"}', "line.2: is plain text, and the rows before it"),
    "empty.jsonl": ("\n\n", "has no rows; give at least one example; in empty.jsonl"),
    "empty.json": ("[]", "has no rows; .*; in empty.json"),
    "empty.csv": ("prompt,completion\n", "has no rows; .*; in empty.csv"),
    "headless.csv": ("Where?,There.\nHow?,So.\n", "line.2.*the first line of a table names its columns; in headless"),
    "hollow.csv": ("prompt,completion\na,b\nc,\n", r"line\.3\.completion: is an empty cell.*; in hollow.csv"),
    "silent.csv": ("question,prompt,chosen,rejected\n,,b,c\n", r"line\.2\.prompt: is an empty cell"),
    "b.parquet": ("{}", "is not read in this form; save it as JSON Lines.*; in b.parquet"),
    "a.parquet": ("PAR1\x15\x04 ...", "is Parquet.*; in a.parquet"),
}


@pytest.mark.parametrize("name", [*BROKEN])
def test_a_fault_names_the_file_the_line_and_the_nearest_form(platform: Platform, tmp_path: Path, name: str) -> None:
    text, why = BROKEN[name]
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput, match=why):
        platform.training.upload("rows", tmp_path / name)
    assert not [*platform._runtime.artifacts.names()]


@pytest.mark.parametrize("rows", [[("a", "b")], [["a", "b"]], ["prompt", "completion"]], ids=["tuple", "list", "frame"])
def test_rows_that_are_no_objects_are_told_what_is(platform: Platform, rows: Any) -> None:
    with pytest.raises(InvalidInput, match=r'data.0: must be an object, such as .*df.to_dict\("records"\)'):
        platform.training.upload("rows", rows)


def test_every_door_reads_them(platform: Platform, yard_file: Path, tmp_path: Path) -> None:
    pairs = [{"prompt": f"question {at}", "completion": "an answer"} for at in range(4)]
    judged = [{"prompt": "q", "chosen": "yes", "rejected": "no"}]
    (tmp_path / "pairs.json").write_text(json.dumps(pairs))
    platform.models.create("m", base_model="tabular-mini")
    assert platform.training.sft("desk/m", pairs).result().step == 1
    assert platform.training.sft("desk/m", tmp_path / "pairs.json").result().step == 2
    assert platform.training.dpo("desk/m", judged).result().step == 3
    args = ["train", "sft", "desk/m", str(tmp_path / "pairs.json"), "--base-model", "tabular-mini"]
    done = CliRunner().invoke(main, [*args, "--store", str(yard_file)])
    assert done.exit_code == 0, done.output
    assert "desk/m is at step 1" in done.output


@pytest.mark.parametrize(("given", "wanted"), [("dpo", "sft"), ("sft", "dpo")])
@pytest.mark.parametrize("plain", [True, False], ids=["ours", "another form"])
def test_rows_of_another_method_name_it(
    platform: Platform, tmp_path: Path, given: str, wanted: str, plain: bool
) -> None:
    asked: dict[str, Any] = {"messages": [said("user", "q")]} if plain else {"prompt": "q"}
    example = {"messages": [said("user", "q"), said("assistant", "yes")]} if plain else {**asked, "completion": "yes"}
    rows = [{**asked, "chosen": "yes", "rejected": "no"} if wanted == "dpo" else example]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    dataset = platform.training.upload("rows", rows)
    platform.models.create("m", base_model="tabular-mini")
    train, why = getattr(platform.training, given), f"is (required|not known); training.{wanted} takes"
    for data, place in (
        (rows, "data.0"),
        (tmp_path / "rows.json", "line.1"),
        (dataset.url, "training_data_url.line.1"),
    ):
        with pytest.raises(InvalidInput, match=rf"^{place}\.chosen: {why}"):
            train("desk/m", data)
    assert getattr(platform.training, wanted)("desk/m", rows).result().step == 1


def test_other_formats_stay_as_they_are() -> None:
    assert reading_any_form(GROUPS) is GROUPS


class Made(io.RawIOBase):
    """A file that is made while it is read, so that it takes no memory."""

    name = "made"

    def __init__(self, begin: bytes, row: bytes, count: int, end: bytes) -> None:
        self._pieces = iter([begin, *[row] * count, end])
        self._rest = b""

    def read(self, size: int = -1) -> bytes:  # type: ignore[override]
        while len(self._rest) < size and (piece := next(self._pieces, b"")):
            self._rest += piece
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken

    def peek(self, size: int) -> bytes:
        self._rest = self.read(size) + self._rest
        return self._rest

    def seek(self, *_: Any) -> int:
        return 0

    def tell(self) -> int:
        return 0


@pytest.mark.slow
def test_a_large_file_is_never_held_whole() -> None:
    answer = "x" * 10_000
    row = json.dumps({"prompt": "a", "completion": answer}).encode() + b"\n"
    kinds: Mapping[str, Made] = {
        "lines": Made(b"", row, 3000, b""),
        "array": Made(b" " * 3 + b"[" + row, b"," + row, 2999, b"]"),
    }
    for kind, file in kinds.items():
        tracemalloc.start()
        assert sum(1 for _ in READ.read(file)) == 3000, kind  # type: ignore[arg-type]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 * 2**20, kind  # of 30 MB


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x"])
@pytest.mark.parametrize(("begin", "says"), BEGINS)
def test_files_that_are_not_read_are_called_what_they_are(
    platform: Platform, tmp_path: Path, name: str, begin: bytes, says: str
) -> None:
    (tmp_path / name).write_bytes(begin + b"rest")
    with pytest.raises(InvalidInput, match=f"^is {says}, which is not read; .*; in {name}$"):
        platform.training.upload("x", tmp_path / name)


@pytest.mark.parametrize("mark", ["ORCID", "ORC", "PAR1", "ARROW1", "FEA1", "BZh", "BZh9", "Obj"])
@pytest.mark.parametrize("end", ["", "é", "\t"])
def test_a_table_is_read_though_its_first_column_is_called_as_other_files_begin(
    platform: Platform, tmp_path: Path, mark: str, end: str
) -> None:
    table = tmp_path / "x.csv"
    table.write_text(f"{mark}{end},prompt,completion\n0,a,b\n1,c,d\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match=f"^line.2.{mark}{end}: is not known; leave it out"):
        platform.training.upload("x", table)


def test_a_column_without_a_name_is_called_so(platform: Platform, tmp_path: Path) -> None:
    table = tmp_path / "x.csv"
    table.write_text(",prompt,completion\n0,a,b\n1,c,d\n")
    with pytest.raises(InvalidInput, match=r"^line.1: has a column without a name, as an index has none"):
        platform.training.upload("x", table)
    table.write_text("prompt,completion,\na,b,\n")
    assert platform.training.upload("x", table).rows == 1
