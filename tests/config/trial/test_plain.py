"""What YAML may say, and that the odd is refused in one line."""

import time

import pytest

from tests.tools.refusals import one_line as refused_in_one_line
from zerobench.common.errors import UserError
from zerobench.config.trial.plain import load_plain, one_line, parse_number


def test_numbers_in_the_notation_of_bucket_sizes_are_numbers():
    assert load_plain("[5e8, 5E+8, 1_000, 010, -3, .5, 5.0]", "f") == [5e8, 5e8, 1000, 10, -3, 0.5, 5.0]


def test_only_the_core_words_of_yaml_mean_something():
    assert load_plain("[true, False, null, ~, no, on, 1:30, 0x1f, 2020-01-01]", "f") == [
        True,
        False,
        None,
        None,
        "no",
        "on",
        "1:30",
        "0x1f",
        "2020-01-01",
    ]


def test_anchors_and_merges_work_as_in_yaml():
    assert load_plain("a: &a {x: 1}\nb: {<<: *a, y: 2}", "f") == {"a": {"x": 1}, "b": {"x": 1, "y": 2}}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1\nb: 2\na: 3", "f: line 3: invalid YAML: the key 'a' is given twice"),
        ("a: {b: 1, 'b': 2}", "the key 'b' is given twice"),
        ("a: [1", "line 1: invalid YAML"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("a: !!binary aGk=", "a: a bytes is not a plain value"),
        ("a: !!timestamp 2020-01-01", "a: a date is not a plain value"),
        ("a: .nan", "a: nan is not a finite number"),
        ("a: 1e999", "a: inf is not a finite number"),
        ("a: {b: 99999999999999999999}", "a.b: the number does not fit 64 bits"),
        ("a: " + "9" * 5000, "invalid YAML"),
        ("1: a", "the key 1 is not text"),
        ('"": a', "the key '' is empty or unprintable"),
        (r'a: "\0"', "holds the unprintable character"),
        (r'a: "\ud800"', "holds the unprintable character"),
        ("a: &a [*a]", "nested too deeply"),
        ("[" * 5000 + "]" * 5000, "nested too deeply"),
        ("a: !!int x", "invalid YAML"),
    ],
)
def test_odd_yaml_is_refused_in_one_line_that_says_what(text: str, told: str):
    with refused_in_one_line(told, start="f: "):
        load_plain(text, "f")


def test_a_file_that_unfolds_into_millions_of_values_is_refused():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(UserError, match="more than 20000 values"):
        load_plain("\n".join(lines), "f")


def test_merges_that_unfold_into_millions_of_keys_are_refused_at_once():
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 10)]
    before = time.process_time()
    with pytest.raises(UserError, match=r"^f: more than 20000 values$"):
        load_plain("\n".join(lines), "f")
    assert time.process_time() - before < 2


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("5e8", 500_000_000),
        (5e8, 500_000_000),
        ("12", 12),
        ("0.5", 0.5),
        (0.25, 0.25),
        ("x", "x"),
        (True, True),
        ("", ""),
        ("9" * 100, 10**100 - 1),
        ("9" * 101, "9" * 101),
    ],
)
def test_a_text_that_writes_a_number_is_that_number(written: object, number: object):
    assert parse_number(written) == number
    assert type(parse_number(written)) is type(number)


def test_a_message_is_made_one_printable_line_of_bounded_length():
    line = one_line("a\nb\u2028c\x1b[31m" + "d" * 10_000)
    assert line.startswith("a b c?[31m")
    assert line.isprintable()
    assert len(line) < 800
