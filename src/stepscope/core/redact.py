"""Remove secrets from everything that Stepscope writes or sends: by name, by shape, and in URLs.

Names of machine learning that merely look like secrets (`use_cls_token`, `max_tokens`, `tokenizer`,
`num_key_value_heads`, `key_dim`) are kept, and so are numbers, booleans and special tokens such as `<pad>`.
`jsonable` turns any configuration object into plain data first: within caps, and whatever the object does.
"""

from __future__ import annotations

import enum
import math
import os
import re
import types
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from stepscope.core.strict_json import word
from stepscope.core.walls import attempt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

REDACTED = "[redacted]"

MAX_TEXT = 4096
"""Characters of the longest text that `jsonable` keeps uncut."""
MAX_CHARACTERS = 128 * 1024
"""Characters that one conversion keeps in all."""
MAX_ARRAY = 64
"""Elements of the largest array that counts as configuration, not data."""

STRONG = re.compile(
    r"passw(?:or)?d|passphrase|passcode|secret|credential|apikey|authtoken|accesstoken|accesskey|privatekey|"
    r"authorization|connectionstring|htpasswd"
)
"""Parts of a name, separators aside, that always mean a secret."""

STRONG_WORDS = {"auth", "bearer", "cookie", "cookies", "pwd", "jwt", "webhook", "webhooks", "sas", "creds", "cred"}

KEY_OWNERS = {
    *("access", "account", "admin", "api", "app", "auth", "client", "consumer", "crypto", "decryption", "deploy"),
    *("encrypt", "encryption", "fernet", "gpg", "hmac", "host", "license", "master", "pgp", "private", "root", "rsa"),
    *("secret", "service", "session", "shared", "signing", "ssh", "storage", "subscription", "tls", "ssl", "user"),
    *("anthropic", "aws", "azure", "cohere", "comet", "databricks", "gcp", "gemini", "github", "google", "groq", "hf"),
    *("huggingface", "kaggle", "mistral", "mlflow", "neptune", "openai", "openrouter", "replicate", "slack", "stripe"),
    *("together", "wandb", "write", "ingest", "datadog", "dd", "sentry", "pinecone", "weaviate", "s3", "minio"),
}
"""Words before `key` that make it a secret; `sort_key`, `image_key`, `primary_key` are none."""

KEY_TAILS = {"id", "value", "data", "pem", "base64", "b64", "string", "json", "text"}

PLAIN_TOKENS = {
    *("additional", "answer", "audio", "begin", "bop", "bos", "box", "chunk", "class", "cls", "context", "decoder"),
    *("delimiter", "dist", "empty", "end", "eoi", "eop", "eos", "eot", "fim", "first", "forced", "image", "img"),
    *("init", "last", "learnable", "mask", "max", "memory", "min", "model", "motion", "next", "num", "pad", "padding"),
    *("patch", "per", "prefix", "prev", "prompt", "query", "question", "register", "sentinel", "sep", "separator"),
    *("sink", "special", "speech", "start", "stop", "suffix", "system", "target", "task", "text", "think", "time"),
    *("trigger", "unk", "unknown", "video", "vision", "visual", "vocab", "word", "by", "of", "each", "every", "in"),
    *("out", "sot"),
}
"""Words before `token` that make it a piece of text and no secret."""

TOKEN_OWNERS = KEY_OWNERS | {
    *("bot", "bearer", "csrf", "id", "oauth", "personal", "pat", "refresh", "sas", "security", "xsrf")
}

PASS_OWNERS = {
    *("admin", "db", "ftp", "http", "imap", "ldap", "login", "mail", "mongo", "mysql", "pg", "postgres", "proxy"),
    *("redis", "root", "smtp", "ssh", "sudo", "user"),
}

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
NUMBER = re.compile(
    r"[-+]?(?:\d{1,9}(?:\.\d*)?|\.\d+)(?:e[-+]?\d{1,3})?|true|false|none|null|yes|no|on|off", re.IGNORECASE
)
SPECIAL = re.compile(r"<[^<>]{0,40}>|\[[A-Z_]{0,40}\]|</?s>")

TAIL, LONG, HEX = "[A-Za-z0-9_-]{16,}", "[A-Za-z0-9]{20,}", "[0-9a-f]{32}"
SHAPES = {
    "-----BEGIN ": "[A-Z0-9 ]{0,40}PRIVATE KEY-----(?:.*?-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|.*)",
    **dict.fromkeys(("hf_", "api_org_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_"), "[A-Za-z0-9]{16,}"),
    **dict.fromkeys(("shpat_", "shpca_", "shppa_", "shpss_"), "[A-Za-z0-9]{16,}"),
    "sk-": "(?=[A-Za-z0-9_-]{0,64}[A-Z0-9])" + TAIL,
    **dict.fromkeys([f"{kind}k_{stage}_" for kind in "srp" for stage in ("live", "test")], "[A-Za-z0-9]{8,}"),
    "whsec_": "[A-Za-z0-9+/=]{16,}",
    **dict.fromkeys(("AKIA", "ASIA", "AROA", "AIDA", "AGPA", "ANPA", "ANVA", "ABIA", "ACCA"), "[A-Z0-9]{12,}"),
    "xox": "[a-z]-[A-Za-z0-9-]{8,}",
    "xapp-": "[A-Za-z0-9-]{8,}",
    **dict.fromkeys(("glpat-", "glptt-", "glcbt-", "gldt-", "glrt-", "glft-", "glsoat-", "github_pat_"), TAIL),
    **dict.fromkeys(("pypi-", "dckr_pat_", "ya29.", "GOCSPX-", "hvs.", "hvb."), TAIL),
    "wandb_v": "[0-9]_" + TAIL,
    "AIza": "[A-Za-z0-9_-]{30,}",
    "eyJ": r"[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?",
    "SG.": rf"{TAIL}\.{TAIL}",
    **dict.fromkeys(("npm_", "r8_", "gsk_", "xai-", "doo_v1_", "dop_v1_", "dor_v1_", "dot_v1_", "lin_api_"), LONG),
    **dict.fromkeys(("ntn_", "pplx-"), LONG),
    "nvapi-": "[A-Za-z0-9_-]{20,}",
    "tskey-": "[A-Za-z0-9-]{12,}",
    "PMAK-": "[A-Za-z0-9-]{20,}",
    **dict.fromkeys(("dapi", "key-", "SK"), HEX),
    "AGE-SECRET-KEY-1": "[A-Z0-9]{20,}",
    "dp.": r"[a-z]{2}\.[A-Za-z0-9]{20,}",
}
"""Tokens that are recognised by themselves: their start, and what follows."""

TELEGRAM = "[0-9]{8,10}:[A-Za-z0-9_-]{30,}"

HOOKS = (
    r"(https?:/{1,2}(?:hooks\.slack\.com/(?:services|workflows|triggers)/|(?:\w+\.)?discord(?:app)?\.com/api/webhooks/"
    r"|[\w.-]{1,80}\.webhook\.office\.com/|api\.telegram\.org/bot))[^\s\"'<>]+"
)
USER_INFO = (
    r"([A-Za-z][A-Za-z0-9+.-]{1,30}:/{1,2})(?:[^\s/?#\"'<>]{1,512}@"
    r"|[^\s/@:\"'<>]{1,256}:(?!\d{1,5}(?:[/?#]|$))[^\s@\"'<>]{1,512}@)"
)
HEADER = (
    r"(\b(?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?)(?:[A-Za-z]{2,16}\s+)?[^\s\"',;]+"
    r"|(\bbearer\s+)[A-Za-z0-9._~+/=-]{6,}"
)
ASSIGNED = re.compile(
    r"(?<![A-Za-z0-9_.-])(?:"
    r"([A-Za-z_][A-Za-z0-9_.-]{1,80})\\?[\"']?[ \t]{0,4}(?::=|=>|[=:])\s{0,4}"
    r"|--?([A-Za-z_][A-Za-z0-9_.-]{1,80})(?:[ \t]{0,4}=|[ \t]{1,4}(?!--))\s{0,4})"
)
"""A name and its sign, or an option and its blank; the value is matched only after a secret name."""
VALUE = re.compile(r"(\\?\")[^\"]*|(\\?')[^']*|[^\s\"'&;,})\]]+")


def _strength(name: str) -> int:
    """Return 2 for a name that always means a secret, 1 for a key or a token (which numbers are not), else 0."""
    text = name[-200:]
    words = [word.lower() for word in WORD.findall(text)]
    if STRONG.search("".join(words)):
        return 0 if words[-1] in {"file", "path", "dir", "name"} else 2
    if not words:
        return 0
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if not STRONG_WORDS.isdisjoint((last, before if last in {"url", "urls", "header", "headers", "value"} else last)):
        return 2
    if last == "pass":
        return 2 if before in PASS_OWNERS else 0
    return 1 if _is_key(words) or _is_token(words) else 0


def _is_key(words: list[str]) -> bool:
    """Return whether the words end in `<owner> key`, with at most one tail such as `id`."""
    body = words[:-1] if words[-1] in KEY_TAILS else words
    return len(body) > 1 and body[-1] in {"key", "keys"} and body[-2] in KEY_OWNERS


def _is_token(words: list[str]) -> bool:
    """Return whether the words end in a token that grants access: any singular one that is not a piece of text."""
    body = words[:-1] if words[-1] in {"value", "string"} else words
    if body[-1:] == ["token"]:
        return len(body) == 1 or body[-2] not in PLAIN_TOKENS
    return body[-1:] == ["tokens"] and len(body) > 1 and body[-2] in TOKEN_OWNERS


def _hides(name: str, value: Any) -> bool:
    """Return whether the value of that name is hidden; None and switches reveal nothing and are kept."""
    if value is None or isinstance(value, bool) or (isinstance(value, str) and value in {"", REDACTED}):
        return False
    strength = _strength(name)
    if strength != 1:
        return strength == 2
    if isinstance(value, str):
        return not NUMBER.fullmatch(value) and not SPECIAL.fullmatch(value)
    return not isinstance(value, (int, float))


def redact_text(text: str) -> str:
    """Return a text without user-info in URLs, bearer tokens, token shapes and values assigned to secret names."""
    if ":/" in text:
        text = re.sub(USER_INFO, rf"\1{REDACTED}@", text)
        text = re.sub(HOOKS, rf"\1{REDACTED}", text, flags=re.IGNORECASE)
    if len(text) > 11:
        if ":" in text or any(map(text.__contains__, SHAPES)):
            text = _shapes().sub(REDACTED, text)
        if "authorization" in text.lower() or "bearer" in text.lower():
            text = re.sub(HEADER, lambda found: f"{found[1] or found[2]}{REDACTED}", text, flags=re.IGNORECASE)
    return _redact_assigned(text) if len(text) > 4 else text


@cache
def _shapes() -> re.Pattern[str]:
    """Return what finds a token in a text; made for the first text that may hold one, as that takes 3 ms."""
    shapes = "|".join(f"{re.escape(start)}{rest}" for start, rest in SHAPES.items() if start[0] != "-")
    begin = "-----BEGIN "
    return re.compile(rf"{begin}{SHAPES[begin]}|(?<![A-Za-z0-9])(?:{shapes}|{TELEGRAM})", re.DOTALL)


def _redact_assigned(text: str) -> str:
    """Return a text without the values that follow a secret name, as in `name=value` or `--name value`."""
    shown: list[str] = []
    done = 0
    for found in ASSIGNED.finditer(text):
        if found.start() < done or not _strength(found[1] or found[2]):
            continue
        value = VALUE.match(text, found.end())
        quote = (value[1] or value[2] or "") if value else ""
        inner = value[0][len(quote) :].rstrip("\\") if value else ""
        if value and _hides(found[1] or found[2], inner) and not value[0].startswith(REDACTED[:-1]):
            shown += [text[done : value.start()], quote, REDACTED]
            done = value.start() + len(quote) + len(inner)
    return "".join([*shown, text[done:]])


def redact_argv(arguments: Iterable[str]) -> list[str]:
    """Return a command line without secrets: `--api-key VALUE`, `--api-key=VALUE`, `KEY=VALUE`, and shapes anywhere."""
    shown: list[str] = []
    option = ""
    for argument in arguments:
        is_value = bool(option) and not argument.startswith("--") and _hides(option, argument)
        shown.append(REDACTED if is_value else _argument(argument))
        is_name = "=" not in argument and (argument.startswith("-") or _strength(argument) == 2) and " " not in argument
        option = argument.lstrip("-+") if is_name and not is_value else ""
    return shown


def _argument(argument: str) -> str:
    name, sign, value = argument.partition("=")
    if sign and " " not in name and _hides(name, value):
        return f"{name}={REDACTED}"
    return redact_text(argument)


def redact(value: Any) -> Any:
    """Return plain JSON data (dicts, lists, scalars) without secrets; the argument is not changed."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, dict):
        return _redact_mapping(value)
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(item, str) for item in value):
            return redact_argv(value)
        return [redact(item) for item in value]
    return value


def _redact_mapping(value: Mapping[Any, Any]) -> dict[str, Any]:
    label = value.get("name", value.get("key"))
    is_labelled = isinstance(label, str) and "value" in value
    shown: dict[str, Any] = {}
    for key, item in value.items():
        name = str(key)
        is_hidden = _hides(name, item) or (is_labelled and name == "value" and _hides(str(label), item))
        shown[redact_text(name)] = REDACTED if is_hidden else redact(item)
    return shown


def jsonable(value: Any, depth: int = 8, size: int = 2000) -> Any:
    """Return any configuration object as plain JSON data: dict, list, str, int, float, bool or None. Never raises.

    Mappings, dataclasses, namespaces and objects with attributes become dicts, sequences and sets lists, enums their
    value, paths texts, scalars of numpy and of CPU tensors numbers. JSON has no non-finite numbers: they become the
    texts "NaN", "Infinity" and "-Infinity". What is left out is named in angle brackets: nesting below `depth` levels,
    and all but `size` values. No tensor on a device is read: that would wait for the device. A long text is redacted
    before it is cut, so that no half of a token survives.
    """
    return _Plain(size).convert(value, depth)


class _Plain:
    """One conversion: counts what may still be kept and tracks the objects it is inside of."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._characters = MAX_CHARACTERS
        self._inside: set[int] = set()

    def convert(self, value: Any, depth: int) -> Any:
        """Return one value as plain data; the one place where foreign code may raise."""
        self._left -= 1
        if id(value) in self._inside:
            return "<cycle>"
        return attempt(lambda: self._known(value, depth), _unreadable)

    def _known(self, value: Any, depth: int) -> Any:
        """Return a scalar unchanged, and convert a container one level down."""
        if value is None or value is True or value is False:
            return value
        if isinstance(value, enum.Enum):
            is_scalar = isinstance(value.value, (str, int, float))
            return self._known(value.value, depth) if is_scalar else value.name
        if isinstance(value, (str, os.PathLike)):
            return self._text(os.fspath(value))
        if isinstance(value, (int, float)):
            return _number(value)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return f"<{len(value)} bytes>"
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            return self._array(value, depth)
        return self._nested(value, depth)

    def _text(self, value: str | bytes) -> str:
        text = _short(value)
        self._characters -= len(text)
        return text if self._characters >= 0 else "<cut>"

    def _array(self, value: Any, depth: int) -> Any:
        """Return a small array in host memory by its values, any other by its form."""
        is_host = str(getattr(value, "device", "cpu")) == "cpu"
        if is_host and hasattr(value, "tolist") and math.prod(value.shape) <= MAX_ARRAY:
            return self.convert(value.tolist(), depth)
        return _short(f"<{type(value).__name__} {value.dtype} {tuple(value.shape)}>")

    def _nested(self, value: Any, depth: int) -> Any:
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)):
            return _short(_qualified(value))
        pairs = _pairs_of(value, self._left + 1)
        is_foreign_list = type(value).__name__ in {"deque", "ListConfig"}
        if pairs is None and not is_foreign_list and not isinstance(value, (list, tuple, set, frozenset)):
            return _opaque(value)
        if depth <= 0:
            return f"<{type(value).__name__}>"
        self._inside.add(id(value))
        try:
            return self._list(value, depth) if pairs is None else self._dict(pairs, depth)
        finally:
            self._inside.discard(id(value))

    def _list(self, value: Iterable[Any], depth: int) -> list[Any]:
        items = islice(value, self._left + 1)
        kept: list[Any] = []
        for item in sorted(items, key=str) if isinstance(value, (set, frozenset)) else items:
            if self._left <= 0:
                kept.append("<more>")
                break
            kept.append(self.convert(item, depth - 1))
        return kept

    def _dict(self, pairs: Iterator[tuple[Any, Any]], depth: int) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for key, item in pairs:
            if self._left <= 0:
                kept["<more>"] = True
                break
            text = self._text(key) if isinstance(key, str) else str(self.convert(key, 1))
            name, number = text, 1
            while name in kept:
                number += 1
                name = f"{text}#{number}"
            kept[name] = self.convert(item, depth - 1)
        return kept


def _unreadable(error: Exception) -> str:
    return f"<unreadable: {type(error).__name__}>"


def _reach(read: Any, key: Any) -> Any:
    """Return `read(key)`; it may run a property, or an interpolation that cannot be resolved."""
    return attempt(lambda: read(key), _unreadable)


def _pairs_of(value: Any, limit: int) -> Iterator[tuple[Any, Any]] | None:
    """Return the named parts of a mapping, dataclass, namespace or plain object; None for anything else."""
    if isinstance(value, dict):
        return iter(list(islice(value.items(), limit)))
    if hasattr(value, "keys") and hasattr(value, "__getitem__"):
        return ((key, _reach(value.__getitem__, key)) for key in islice(value.keys(), limit))
    if hasattr(type(value), "__dataclass_fields__"):
        return ((name, _reach(value.__getattribute__, name)) for name in type(value).__dataclass_fields__)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return iter(zip(value._fields, value, strict=False))
    if not hasattr(value, "__dict__") or callable(value):
        return None
    attributes = _attributes(value)
    return iter(attributes.items()) if attributes else None


def _attributes(value: Any) -> dict[str, Any]:
    """Return the public attributes of an object, those that its class gives as plain values first."""
    found: dict[str, Any] = {}
    for owner in reversed(type(value).__mro__[:-1]):
        found |= {key: item for key, item in vars(owner).items() if not callable(item) and not hasattr(item, "__get__")}
    found.update(vars(value))
    return {name: item for name, item in found.items() if not str(name).startswith("_")}


def _number(value: float) -> Any:
    """Return a plain number; text for what JSON cannot hold."""
    if isinstance(value, int):
        bits = int.bit_length(value)
        return int(value) if bits <= 64 else f"<integer of {bits} bits>"
    number = float(value)
    return number if math.isfinite(number) else word(number)


def _short(text: str | bytes) -> str:
    """Return a text that can be encoded, cut to MAX_TEXT characters."""
    plain = os.fsdecode(text) if isinstance(text, bytes) else str.__str__(text)
    if len(plain) > MAX_TEXT:
        plain = f"{redact_text(plain[: 2 * MAX_TEXT])[:MAX_TEXT]}<cut>"
    return plain.encode("utf-8", "replace").decode() if not plain.isascii() else plain


def _qualified(value: Any) -> str:
    return f"{getattr(value, '__module__', '') or ''}.{getattr(value, '__qualname__', value.__name__)}".lstrip(".")


def _opaque(value: Any) -> str:
    """Return the text of an object that describes itself, such as a dtype or a date; else its type."""
    kind = type(value)
    has_text = any({"__str__", "__repr__"} & vars(owner).keys() for owner in kind.__mro__[:-1])
    return _short(str(value)) if has_text and not callable(value) else f"<{_qualified(kind)}>"
