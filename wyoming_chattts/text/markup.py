"""Second stage: markdown, emoji, URLs and e-mail addresses become what is said of them.

Markdown is read by markdown-it-py, a CommonMark parser, since its rules nest and escape in ways
that patterns get wrong. Emoji are found by the `emoji` library, which follows Unicode's releases.
"""

import re

import emoji
from markdown_it import MarkdownIt
from markdown_it.token import Token

from .runs import main_language

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
# text from a house is no source code: an indented line is a line
_MARKDOWN.disable(["code", "entity", "autolink", "reference", "lheading"])
_MARKUP_CHARS = frozenset("*_`#>|~[]()-+=!\\")

_URL = re.compile(
    r"(?:https?|ftp)://[^\s<>\"'）】》，。、；！？一-鿿]+|\bwww\.[^\s<>\"'，。]+", re.IGNORECASE
)
_EMAIL = re.compile(r"\b[\w.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,5}\b", re.ASCII)
_CONTROL_TOKEN = re.compile(r"\[[a-z]{2,10}(?:_[a-z0-9]{1,5})?\]", re.IGNORECASE)
_TEXT_EMOTICONS = re.compile(
    r"(?:(?<=\s)|^)(?:[:;=8][-^o']?[)(DPp|/\\3]|<3|\^_\^|T_T|-_-|:\))(?=\s|$)"
)
_KAOMOJI = re.compile(r"[(（][^()（）A-Za-z0-9一-鿿]{2,12}[)）]")
_LINE_MARK = re.compile(r"^\s*(?:#{1,6}|>)\s+", re.MULTILINE)
_OPEN, _CLOSE = "\ue000", "\ue001"
_MAX_NESTING_INPUT = 20_000
_MAX_HOST = 40


def text_language(text: str, default: str = "en") -> str:
    """The language that most of a text is in, addresses left aside."""
    return main_language(_EMAIL.sub(" ", _URL.sub(" ", text)), default)


def strip_markup(text: str, language: str) -> str:
    """The words of a text with markdown, without marks and emoji; addresses in words."""
    dot, at = ("点", "艾特") if language == "zh" else (" dot ", " at ")
    text = _URL.sub(lambda m: _url(m.group(), dot), text)
    text = _EMAIL.sub(lambda m: _email(m.group(), dot, at), text)
    text = strip_emoji(text)
    if not _MARKUP_CHARS.isdisjoint(text) or _looks_like_list(text):
        text = _plain(text)
    return text


def strip_emoji(text: str) -> str:
    """The text without emoji and emoticons."""
    if not text.isascii():
        text = _KAOMOJI.sub(" ", text)
        if emoji.emoji_count(text):
            text = emoji.replace_emoji(text, " ")
    return _TEXT_EMOTICONS.sub(" ", text)


def _looks_like_list(text: str) -> bool:
    return bool(re.search(r"^\s{0,3}\d{1,3}[.)]\s", text, re.MULTILINE))


def _plain(text: str) -> str:
    """Words of markdown; control tokens are hidden from the parser, blocks become lines."""
    hidden = _CONTROL_TOKEN.sub(lambda m: f"{_OPEN}{m.group()[1:-1]}{_CLOSE}", text)
    lines: list[str] = []
    for token in _MARKDOWN.parse(hidden[:_MAX_NESTING_INPUT]):
        if token.type == "inline":
            lines.append(_inline(token.children or []))
        elif token.type in ("tr_close", "paragraph_close", "heading_close"):
            lines.append("\n")
        elif token.type in ("td_close", "th_close"):
            lines.append(", ")
    plain = "".join(lines) + hidden[_MAX_NESTING_INPUT:]
    # marks whose partner is in another segment
    plain = re.sub(r"\*{2,}|~~|`+|(?<!\w)[*_](?=\w)|(?<=\w)[*_](?!\w)", "", plain)
    plain = _LINE_MARK.sub("", plain)
    return plain.replace(_OPEN, "[").replace(_CLOSE, "]")


def _inline(children: list[Token]) -> str:
    parts = []
    for child in children:
        if child.type in ("text", "code_inline"):
            parts.append(child.content)
        elif child.type in ("softbreak", "hardbreak"):
            parts.append("\n")
        elif child.type == "image":
            parts.append(child.content)
    return "".join(parts)


def _url(url: str, dot: str) -> str:
    """The host, which says where; the path is not for the ear."""
    # the closing mark of a sentence or a markdown link is not part of the address
    address = url.rstrip(".,;:!?)]*_'\"")
    host = re.sub(r"^[a-z]+://", "", address, flags=re.IGNORECASE)
    host = re.split(r"[/?#]", host, maxsplit=1)[0].rpartition("@")[2].removeprefix("www.")
    host = host.partition(":")[0]
    spoken = (
        host.replace(".", dot) if len(host) <= _MAX_HOST and re.search("[A-Za-z]", host) else ""
    )
    return f" {spoken} {url[len(address) :]}"


def _email(address: str, dot: str, at: str) -> str:
    name, _, host = address.partition("@")
    return f" {name.replace('.', dot)}{at}{host.replace('.', dot)} "
