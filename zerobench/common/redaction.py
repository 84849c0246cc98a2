"""Removes secrets from text in a run folder: command lines, output of ranks and launchers, tracebacks.

Run folders are meant to be shared. Environment variables are kept by an allow-list of names
(launch/machine/variables.py), which is the safer way. A command line and a log have no such list, so text in the form
of a secret is replaced by MARK, and nothing else: the value of a name that denotes one (`--hf-token X`, `API_KEY=X`,
`"password": "X"`), user and password of a URL, authorization headers and cookies, private keys, and words with the
prefix or the form of a generated token; and any text that the caller knows to be one. Removing too much is the lesser
fault; an unknown secret that looks like a word (`train.py hunter2`) cannot be recognized.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zerobench.common.temporary_files import replacing

MARK = "[REDACTED]"
_SHORTEST = 6

_WORDS = (
    r"token|secret|passw(?:or)?d|passphrase|credentials?|api[_-]?key|(?:access|account)[_-]?key(?:[_-]?id)?|private[_-]?key"
    r"|signature|authorization|bearer|cookie|webhook(?:[_-]?url)?"
)
_SHORT_WORDS = r"key|pwd|pass|pw|auth|sig|pat|otp|jwt|private"
"""Words that count only alone or after a separator: `monkey`, `compass` and `OpenMP` are no secrets."""
_NAME = rf"(?:[\w.-]*?(?:{_WORDS})|(?:[\w.-]*[_.-])(?:{_SHORT_WORDS}))"
_SECRET_NAME = re.compile(rf"(?:{_NAME}|{_SHORT_WORDS})", re.IGNORECASE)

_QUOTED = r""""(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'"""
_VALUE = rf"(?:{_QUOTED}|[^\s,;&\"'(){{}}\[\]]+)"
_PEM_START = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_PEM_END = re.compile(r"-----END [A-Z ]*PRIVATE KEY-----")
_PEM = re.compile(rf"({_PEM_START.pattern}).*?({_PEM_END.pattern}|\Z)", re.DOTALL)

_SCHEME_OF_URL = re.compile(r"[a-z][a-z0-9+.-]{0,20}://", re.IGNORECASE)
_URL_TEXT = re.compile(r"[^\s\"'<>]+")
_USER = re.compile(r"(?<![\w/.-])([\w.-]+):[^\s:/@\"']+@(?=[\w\[])")
"""`user:password@host`, as in ssh commands and database clients."""
_HEADER = re.compile(
    r"\b((?:proxy-)?authorization|(?:set-)?cookie|x-[\w-]{0,40}(?:key|token))([\"']?\s*[:=]\s*)[^\n\"']+", re.IGNORECASE
)
_SCHEME = re.compile(r"\b(bearer)(\s+)[\w.~+/-]{6,}=*|\b(basic)(\s+)(?:[\w+/]{20,}=*|[\w+/]{6,}=+)", re.IGNORECASE)
_WORD = re.compile(r"[\w.-]+")
_OPTION_NAME = re.compile(rf"--?{_NAME}|--(?:{_SHORT_WORDS})", re.IGNORECASE)
_OPTION_START = re.compile(r"(?<![\w-])-")
_OPTION_VALUE = re.compile(rf"\s++(?!-)({_VALUE})")
_ASSIGNED = re.compile(rf"(?<![\w.-])([\"']?)((?:--?)?{_NAME})\1(\]?\s*(?:=(?!=)|:(?!:))\s*)({_VALUE})", re.IGNORECASE)
_AFTER_MARK = re.compile(rf"([?&;](?:{_SHORT_WORDS}|code)=)[^\s&;\"'<>#]+", re.IGNORECASE)
"""In a URL's query or a list of options, where a bare `key=` is no variable of a program."""
_TOKEN = re.compile(
    r"\b(?:(?:AKIA|ASIA|AGPA|AROA)[A-Z0-9]{12,}|(?:hf_|gh[pousr]_|npm_|api_org_|r8_|gsk_)[A-Za-z0-9]{16,}"
    r"|(?:github_pat_|glpat-|xox[a-z]-|nvapi-|dckr_pat_|dop_v1_|[rs]k_live_|wandb_v1_|ya29\.|AIza|sk-)[\w.-]{8,}"
    r"|hooks\.slack\.com/[\w/-]+|discord(?:app)?\.com/api/webhooks/[\w/-]+|pypi-[\w-]{16,}|SG\.[\w-]{16,}\.[\w-]+|eyJ[\w-]{6,}(?:\.[\w-]+){1,2}|eyJ[\w-]{24,})"
)
"""Tokens of known services."""
_LONG = re.compile(r"(?<![\w/.+@-])[A-Za-z0-9+_-]{32,}={0,2}(?![\w/])")

_HINTS = (
    *("token", "secret", "passw", "passphrase", "credential", "key", "signature", "authorization", "bearer", "cookie"),
    *("webhook", "discord", "pwd", "pass", "pw", "auth", "sig", "pat", "otp", "jwt", "private", "basic", "://", "@"),
    *("code=", "hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "npm_", "api_org_", "r8_", "gsk_", "glpat", "xox"),
    *("nvapi", "dckr", "dop_v1", "k_live_", "wandb_v1", "ya29", "aiza", "sk-", "pypi-", "sg.", "eyj", "akia", "asia"),
    *("agpa", "aroa", "hooks."),
)
_RUN = re.compile(r"[A-Za-z0-9+_-]{32}")
"""Every text with a secret has one of these or of _HINTS; most lines of a log have none."""


def is_secret_name(name: str) -> bool:
    """Return whether an option, variable or key of this name has a secret value, by its last words.

    `HF_TOKEN`, `aws_access_key_id`, `--api-key` do; `max_tokens`, `num_key_value_heads`, `password_file` do not.
    """
    return _SECRET_NAME.fullmatch(name.lstrip("-")) is not None


def secret_values(environ: Mapping[str, str]) -> set[str]:
    """Values of variables in `environ` whose names denote a secret, to be passed as `known`."""
    return long_lines(value for name, value in environ.items() if is_secret_name(name) and name != "PWD")


def long_lines(values: Iterable[str]) -> set[str]:
    """Lines of `values` long enough to search for: a password of four letters occurs in ordinary words."""
    return {line for value in values for line in value.splitlines() if len(line) >= _SHORTEST}


def redact_text(text: str, known: Collection[str] = ()) -> str:
    """Replace each secret in `text` by MARK, `known` ones included."""
    for secret in sorted(known, key=len, reverse=True):
        text = text.replace(secret, MARK)
    lowered = text.lower()
    if not any(hint in lowered for hint in _HINTS) and _RUN.search(text) is None:
        return text
    text = _PEM.sub(rf"\1{MARK}\2", text)
    text = replace_url_users(text, f"{MARK}@")
    text = _USER.sub(rf"\1:{MARK}@", text)
    text = _HEADER.sub(rf"\1\2{MARK}", text)
    text = _SCHEME.sub(lambda match: f"{match[1] or match[3]}{match[2] or match[4]}{MARK}", text)
    text = _redact_options(text)
    text = _ASSIGNED.sub(lambda match: f"{match[1]}{match[2]}{match[1]}{match[3]}{_marked(match[4])}", text)
    text = _AFTER_MARK.sub(rf"\1{MARK}", text)
    text = _TOKEN.sub(MARK, text)
    return _LONG.sub(lambda match: MARK if _drawn_at_random(match[0]) else match[0], text)


def replace_url_users(text: str, replacement: str, run: re.Pattern[str] = _URL_TEXT) -> str:
    """Return `text` with user and password of each URL replaced, `@` included; a URL is within one `run`.

    They are all between `//` and the last `@`: a password may hold slashes and an `@` of its own.
    """

    def replaced(match: re.Match[str]) -> str:
        url, at = match[0], match[0].rfind("@")
        scheme = _SCHEME_OF_URL.search(url, 0, max(at, 0))
        return url if scheme is None else f"{url[: scheme.end()]}{replacement}{url[at + 1 :]}"

    return run.sub(replaced, text) if "@" in text else text


def _redact_options(text: str) -> str:
    """Return `text` with the values of options whose names promise a secret replaced.

    A word is looked at once: a pattern that could begin at each dash of a word would take the square of its length.
    """
    pieces, done = [], 0
    for word in _WORD.finditer(text):
        if word.start() < done or not _is_secret_option(word[0]):
            continue
        value = _OPTION_VALUE.match(text, word.end())
        if value is not None:
            pieces += [text[done : value.start(1)], _marked(value[1])]
            done = value.end()
    return "".join([*pieces, text[done:]])


def _is_secret_option(word: str) -> bool:
    # The option may follow a full stop without a space
    start = _OPTION_START.search(word)
    return start is not None and _OPTION_NAME.fullmatch(word, start.start()) is not None


def redact_arguments(argv: Sequence[str], known: Collection[str] = ()) -> list[str]:
    """Replace secrets in the command line `argv` by MARK; the number and order of arguments stay.

    Besides `redact_text`: the whole argument after an option whose name denotes a secret, in any form (`--password "two
    words"`), the whole value of such a `NAME=value`, and the passwords of `sshpass -p` and `curl -u`.
    """
    redacted: list[str] = []
    for index, argument in enumerate(argv):
        before = argv[index - 1] if index else ""
        redacted.append(_argument(argument, before, program=_program(argv[:index]), known=known))
    return redacted


def redact_value(value: Any, *, by_name: bool = True) -> Any:
    """Replace secrets in a document of mappings, lists and values: in strings and, with `by_name`, by their keys."""
    if isinstance(value, Mapping):
        return {
            key: MARK if by_name and _holds_secret(key, inner) else redact_value(inner, by_name=by_name)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact_value(inner, by_name=by_name) for inner in value]
    return redact_text(value) if isinstance(value, str) else value


def _holds_secret(name: Any, value: Any) -> bool:
    # Numbers are none: `pad_token: 0`
    return isinstance(value, str) and is_secret_name(str(name))


def redact_file(path: Path, known: Collection[str] = ()) -> bool:
    """Replace secrets in the text file `path`, line by line; returns whether there were any.

    For files that are no longer written to. A missing file has none.

    Raises OSError: it cannot be read or replaced.
    """
    if not path.is_file() or all(old == new for old, new in _redacted_lines(path, known)):
        return False
    with (
        replacing(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        file.writelines(new for _, new in _redacted_lines(path, known))
    return True


def _redacted_lines(path: Path, known: Collection[str]) -> Iterator[tuple[str, str]]:
    """Each line before and after redaction; a private key spans many, of which the first and last mark stay."""
    is_in_key = False
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        for line in file:
            text = line.rstrip("\r\n")
            if is_in_key:
                end = _PEM_END.search(text)
                is_in_key, shown = end is None, text[end.start() :] if end else MARK
            else:
                is_in_key = _PEM_START.search(text) is not None and _PEM_END.search(text) is None
                shown = redact_text(text, known)
            yield line, shown + line[len(text) :]


def _argument(argument: str, before: str, program: str, known: Collection[str]) -> str:
    if program == "sshpass" and before == "-p":
        return MARK
    if program in {"curl", "wget"} and before in {"-u", "--user"} and ":" in argument:
        return f"{argument.partition(':')[0]}:{MARK}"
    if before.startswith("-") and "=" not in before and is_secret_name(before) and not argument.startswith("--"):
        return MARK
    name, equals, value = argument.partition("=")
    if equals and value and is_secret_name(name):
        return f"{name}={_marked(value)}"
    return redact_text(argument, known)


def _program(argv: Sequence[str]) -> str:
    """Last program in the arguments so far that has a one-letter password option."""
    names = (Path(argument).name for argument in reversed(argv))
    return next((name for name in names if name in {"sshpass", "curl", "wget"}), "")


def _marked(value: str) -> str:
    """MARK with the quotes of `value`."""
    quote = value[0] if len(value) > 1 and value[0] in "\"'" and value[-1] == value[0] else ""
    return f"{quote}{MARK}{quote}"


def _drawn_at_random(word: str) -> bool:
    # A long run of letters and digits is random if it is all hexadecimal, or mixes cases and digits
    if re.fullmatch(r"[0-9a-f]{32,}|[0-9A-F]{32,}", word):
        return re.search(r"[a-fA-F]", word) is not None and re.search(r"[0-9]", word) is not None
    parts = [part for part in re.split(r"[_-]", word) if len(part) >= 16]
    return any(all(re.search(kind, part) for kind in ("[a-z]", "[A-Z]", "[0-9]")) for part in parts)
