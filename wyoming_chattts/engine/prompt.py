"""The prompts of ChatTTS: which control tokens go around a text.

After the ChatTTS package's `core.py` and `model/speaker.py`.
"""

from .base import Prompt, Style

_RESERVED = ("[Stts]", "[spk_emb]", "[empty_spk]", "[Ptts]", "[Etts]")


def code_prompt(prompt: Prompt) -> str:
    """Prompt of the audio codes: `[Stts][spk_emb][speed_5]text[Ptts]`; a recording's transcript
    stands before the rest, as if all of it were one text."""
    text = prompt.text
    for token in _RESERVED:
        text = text.replace(token, "")
    speaker = "[spk_emb]" if prompt.speaker is not None else "[empty_spk]"
    before = prompt.recording.transcript if prompt.recording is not None else ""
    return f"[Stts]{speaker}{before}[speed_{prompt.style.speed}]{text.strip()}[Ptts]"


def refine_prompt(prompt: Prompt) -> str:
    """Prompt of the refine pass: `[Sbreak]text[Pbreak][oral_2][laugh_0][break_6]`."""
    return f"[Sbreak]{prompt.text}[Pbreak]{refine_style(prompt.style)}"


def refine_style(style: Style) -> str:
    """Style tokens of the refine pass; none for levels left to the model."""
    levels = (("oral", style.oral), ("laugh", style.laugh), ("break", style.pause))
    return "".join(f"[{name}_{level}]" for name, level in levels if level is not None)
