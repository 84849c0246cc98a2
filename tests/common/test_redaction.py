"""What is taken out of command lines and logs, and what is left."""

import string
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerobench.common.redaction import (
    MARK,
    is_secret_name,
    redact_arguments,
    redact_file,
    redact_text,
    redact_value,
    secret_values,
)

TEXTS = {
    "--hf-token {} --lr 1": "abc",
    "HF_TOKEN={}": "abc",
    "export WANDB_API_KEY='{}'; run": "two words",
    '{{"api_key": "{}", "n": 1}}': "letmein",
    "os.environ['HF_TOKEN'] = '{}'": "abc",
    "password: {}": "hunter2",
    "https://user:{}@proxy:8080/x": "hunter2",
    "https://{}@proxy/x": "gho",
    "http://u:{}@proxy/x": "p@ss/w0rd@home",
    "ssh admin:{}@node7:22": "s3same",
    "rate=5;pwd={};x=1": "tiger",
    "https://store/x?n=1&access_token={}&m=2": "qwerty",
    "https://store/x?key={}": "qwerty",
    "s3://b/x?X-Amz-Credential=AKIA/1&X-Amz-Signature={}": "bbb",
    "Authorization: Bearer {}": "abc.def.ghi",
    "curl -H 'X-Api-Key: {}' host": "zzz",
    "Cookie: session={}; theme=dark": "monster",
    "sent with bearer {}": "abc.def.ghi",
    "Authorization: Basic {}": "dXNlcjpwYXNz",
    "x {} y": "AKIAIOSFODNN7EXAMPLE",
    "got {}": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
    "using {}.": "sk-proj-abcdefgh",
    "({})": "hf_abcdefghijklmnopqrstuvwxyz0123",
    "{}": "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "login {}": "0123456789abcdef0123456789abcdef01234567",
    "value={}": "d41d8cd98f00b204e9800998ecf8427e",
    "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----": "b3BlbnNzaC1r\nZXktdjE",
    "[INFO] [launch.py:162:main] 0 NCCL_TOKEN={}": "plainword",
}

HARMLESS = [
    "tokens_per_s=1234 num_key_value_heads=8 max_tokens: 5 tokenizer=gpt2",
    "KeyError: 'zero_optimization'",
    "if key == 4: module::key",
    "GPU-7c9e6679-7425-40de-944b-e07fc1f90ae7",
    "git@github.com:org/repo.git and user@host",
    "meta-llama/Llama-3.1-8B-Instruct",
    "from huggingface_hub import hf_hub_download  # hf_config",
    'File "/hub/models--x/snapshots/0123456789abcdef0123456789abcdef01234567/c.py", line 3, in forward',
    "test_that_a_long_name_of_many_words_stays_as_it_is_written",
    "0x7f1234567890 at 12:34:56,789 --deepspeed_config ds.json --num_gpus 8",
    "NCCL_DEBUG=INFO NCCL_SOCKET_IFNAME=enp1s0f0",
]


@pytest.mark.parametrize(("pattern", "secret"), TEXTS.items())
def test_a_secret_is_taken_out_of_text_and_the_rest_stays(pattern: str, secret: str) -> None:
    shown = redact_text(pattern.format(secret))
    assert secret not in shown
    assert MARK in shown
    assert shown.split(MARK)[0] == pattern.format(MARK).split(MARK)[0][: len(shown.split(MARK)[0])]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see.--token hunter22", f"see.--token {MARK}"),
        ("run --verbose true --token hunter22 --lr 1", f"run --verbose true --token {MARK} --lr 1"),
        ("--key 'two words' on", f"--key '{MARK}' on"),
        ("-a.-b.--api-key  hunter22", f"-a.-b.--api-key  {MARK}"),
        ("x_http://me:hunter22@host", f"x_http://{MARK}@host"),
        ("--max_tokens 512", "--max_tokens 512"),
    ],
)
def test_the_value_of_an_option_and_the_user_of_a_url_are_taken_out_and_no_more(text: str, shown: str) -> None:
    assert redact_text(text) == shown


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_resembles_a_secret_stays(text: str) -> None:
    assert redact_text(text) == text


def test_what_is_known_to_be_a_secret_goes_whatever_it_looks_like() -> None:
    environ = {"MY_PASSWORD": "correct horse", "LONG_TOKEN": "correct horse battery", "PWD": "/some/folder", "X": "run"}
    known = secret_values(environ)
    assert known == {"correct horse", "correct horse battery"}
    assert redact_text("a correct horse battery in /some/folder, run", known) == f"a {MARK} in /some/folder, run"


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "aws_access_key_id", "--api-key", "authToken", "key", "PGPASSWORD", "pwd"]
)
def test_names_that_promise_a_secret(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["max_tokens", "num_key_value_heads", "--tokenizer", "password_file", "monkey", "-c"])
def test_names_that_only_sound_like_one(name: str) -> None:
    assert not is_secret_name(name)


def test_a_command_line_keeps_its_arguments_but_for_the_secrets() -> None:
    argv = [
        *("deepspeed", "--num_gpus", "8", "train.py", "--eos-token", "--hf-token", "abc", "--api-key=zz"),
        *("--lr", "1e-4", "AWS_SESSION_TOKEN=x", "--password", "two words", "sshpass", "-p", "pw"),
        *("curl", "-u", "me:them", "sh", "-c", "export TOKEN=t; run"),
    ]
    assert redact_arguments(argv) == [
        *("deepspeed", "--num_gpus", "8", "train.py", "--eos-token", "--hf-token", MARK, f"--api-key={MARK}"),
        *("--lr", "1e-4", f"AWS_SESSION_TOKEN={MARK}", "--password", MARK, "sshpass", "-p", MARK),
        *("curl", "-u", f"me:{MARK}", "sh", "-c", f"export TOKEN={MARK}; run"),
    ]


@given(st.lists(st.text(alphabet=string.printable, max_size=30), max_size=6))
def test_any_command_line_keeps_its_length_and_is_not_redacted_twice(argv: list[str]) -> None:
    once = redact_arguments(argv)
    assert len(once) == len(argv)
    assert [redact_text(redact_text(argument)) for argument in argv] == [redact_text(argument) for argument in argv]


def test_a_file_loses_its_secrets_line_by_line_and_keeps_every_other_byte(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    key = b"-----BEGIN RSA PRIVATE KEY-----\nsecret1\nsecret2\n-----END RSA PRIVATE KEY-----\n"
    path.write_bytes(b"\xff\xfe progress 1\rprogress 2\r\nHF_TOKEN=abc\n" + key + b"known thing\nlast")
    assert redact_file(path, {"known thing"})
    mark = MARK.encode()
    lines = [b"-----BEGIN RSA PRIVATE KEY-----" + mark, mark, mark, b"-----END RSA PRIVATE KEY-----", mark, b"last"]
    assert path.read_bytes() == b"\xff\xfe progress 1\rprogress 2\r\nHF_TOKEN=" + mark + b"\n" + b"\n".join(lines)
    assert not redact_file(path, {"known thing"})
    assert not redact_file(tmp_path / "nowhere")
    assert [entry.name for entry in tmp_path.iterdir()] == ["log.txt"]


def test_a_hostile_line_takes_seconds_and_not_minutes() -> None:
    before = time.process_time()
    for piece in ("x-", "a.b_", "://", "key ", "--a-", "eyJ", "@:", "bearer ", "a-token-", "AKIA"):
        assert len(redact_text(piece * 10_000)) > 0
    assert time.process_time() - before < 10, "half a second on an idle machine"


def test_a_document_loses_what_secret_names_hold_and_keeps_its_shape() -> None:
    url = "https://me:pw@host/x"
    document = {"comet": {"api_key": "hush", "enabled": True}, "pad_token": 0, "urls": [url], "n": None}
    assert redact_value(document) == {
        "comet": {"api_key": MARK, "enabled": True},
        "pad_token": 0,
        "urls": [redact_text(url)],
        "n": None,
    }


def test_a_document_whose_names_promise_nothing_loses_secrets_in_its_texts_alone() -> None:
    url = "https://me:pw@host/x"
    document = {"model": {"eos_token": "end"}, "urls": (url,)}
    assert redact_value(document, by_name=False) == {"model": {"eos_token": "end"}, "urls": [redact_text(url)]}


@pytest.mark.parametrize(("text", "shown"), [
    ("with bearer abc.def.ghi now", f"with bearer {MARK} now"),
    ("with BEARER\tabc.def.ghi= now", f"with BEARER\t{MARK} now"),
    ("with basic\tdXNlcjpwYXNz= now", f"with basic\t{MARK} now"),
    ("with Basic  dXNlcjpwYXNzd29yZDE5 now", f"with Basic  {MARK} now"),
    ("with basic dXNlcjpwYXNzd29yZDE now", "with basic dXNlcjpwYXNzd29yZDE now"),  # nineteen, which may be a word
    ("a basic understanding, a bearer plant", "a basic understanding, a bearer plant"),
])  # fmt: skip
def test_a_scheme_keeps_its_word_and_what_separates_it(text: str, shown: str) -> None:
    assert redact_text(text) == shown


HEXADECIMAL = "0123456789abcdef0123456789abcdef"
MIXED = "aB3dE6gH9jK2mN5p"
"""Sixteen letters of both cases and digits."""


@pytest.mark.parametrize(("word", "is_secret"), [
    (HEXADECIMAL, True),
    (HEXADECIMAL[:-1], False),
    (HEXADECIMAL.upper(), True),
    (HEXADECIMAL[:16] + HEXADECIMAL[16:].upper(), True),
    ("0" * 32, False),
    ("abcdef" * 6, False),
    (MIXED * 2, True),
    (MIXED + "_" + MIXED, True),
    (MIXED[:15] + "_" + MIXED[:15] + "_x", False),
    ((MIXED * 2).lower(), False),
    (f"sha/{MIXED * 2}", False),
])  # fmt: skip
def test_a_word_of_thirty_two_is_a_secret_where_it_is_drawn_at_random(word: str, is_secret: bool) -> None:
    assert redact_text(f"see {word} there") == (f"see {MARK} there" if is_secret else f"see {word} there")


@pytest.mark.parametrize(("value", "is_known"), [("tiger", False), ("tigers", True)])
def test_a_value_of_six_letters_may_be_looked_for_and_a_shorter_one_is_in_other_words(
    value: str, is_known: bool
) -> None:
    assert secret_values({"HF_TOKEN": value, "PWD": "/home/somebody", "HOME": "/home/x", "N_TOKENS": "123456"}) == (
        {value} if is_known else set()
    )
    assert secret_values({"KEY": f"{value}\nsecond line\nab"}) == ({value} if is_known else set()) | {"second line"}
