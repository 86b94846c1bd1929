"""ChatTTS speech for Home Assistant over the Wyoming protocol."""

__version__ = "0.1.0"
