"""Many prompts at once, with asyncio: python batch.py model.gguf "Once upon a time" "One day, a fox" ...

SPDX-License-Identifier: Apache-2.0
"""

import asyncio
import sys

import pyquern


async def main() -> None:
    model = pyquern.Model(sys.argv[1])
    prompts = sys.argv[2:]
    answers = await asyncio.gather(*(model.agenerate(prompt, max_tokens=40) for prompt in prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        print(f"{prompt}{answer.text}\n    {answer.usage.completion_tokens} tokens, {answer.finish_reason}")


asyncio.run(main())
