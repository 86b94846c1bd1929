"""The engines: text of a segment in, 24 kHz audio out. Knows nothing of Wyoming or asyncio."""
