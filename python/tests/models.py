"""The models of the repository that tests of the engine use."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
GOLDEN = REPOSITORY / "tests" / "golden"
DEMO = REPOSITORY / "models" / "quern-demo.gguf"  # tells stories; recurrent layers
PARROT = GOLDEN / "parrot.gguf"  # says PARROT_SAYS to anything
CALLER = GOLDEN / "caller.gguf"  # answers with reasoning and a call
PARROT_SAYS = "Hé 世🙂!"
QUESTION = [{"role": "user", "content": "What is it?"}]
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
