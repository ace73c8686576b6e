"""quern serve with the clients that people use: the openai package with strict validation and every raw answer checked, litellm,
openai-agents, pydantic-ai and Ollama's package.

    serve_clients.py DEMO CALLER AGENT [--random 6]

The models are models/quern-demo.gguf, tests/golden/caller.gguf and agent.gguf. What check_protocol.py checks without HTTP is checked
here with it: Remote stands for protocol_lines. QN_BIN names the folder of quern.
"""
import argparse
import asyncio
import json
import os
import random

os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", OPENAI_AGENTS_DISABLE_TRACING="1", DO_NOT_TRACK="1")

import check_protocol as protocol
from serve_process import LIMIT, Connection, Server, ask

import openai

httpx = protocol.httpx
ASK = protocol.ASK
SCHEMAS = {"/v1/chat/completions": (protocol.CHAT, protocol.CHAT_CHUNK), "/v1/completions": (protocol.COMPLETION, protocol.COMPLETION_CHUNK)}


# ---- What passes over the wire ----


class Tee(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The bytes of an answer, kept as they pass; checked at their end."""

    def __init__(self, stream, check):
        self.stream, self.check, self.bytes = stream, check, b""

    def __iter__(self):
        for piece in self.stream:
            self.bytes += piece
            yield piece
        self.check(self.bytes)

    async def __aiter__(self):
        async for piece in self.stream:
            self.bytes += piece
            yield piece
        self.check(self.bytes)

    def close(self):
        self.stream.close()

    async def aclose(self):
        await self.stream.aclose()


class Checked(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """A transport that checks headers and bytes of all answers."""

    def __init__(self, inner, seen):
        self.inner, self.seen = inner, seen

    def watch(self, request, response):
        body = json.loads(request.content) if request.content else {}
        is_stream = bool(body.get("stream")) and response.status_code == 200
        headers = response.headers
        assert headers["x-request-id"] and "server" not in headers, headers
        assert headers["content-type"].split(";")[0] == ("text/event-stream" if is_stream else "application/json"), headers
        if is_stream:
            assert headers["cache-control"] == "no-cache" and headers["x-accel-buffering"] == "no", headers

        def check(data):
            self.seen.append(data)
            schemas = SCHEMAS.get(request.url.path)
            if response.status_code != 200:
                protocol.check_shape(json.loads(data), protocol.ERROR, request.url.path)
            elif is_stream:
                has_usage = bool((body.get("stream_options") or {}).get("include_usage"))
                chunks = protocol.chunks_of([event + "\n\n" for event in data.decode()[:-2].split("\n\n") if not event.startswith(":")])
                protocol.join_stream(chunks, schemas[1], "chat" in request.url.path, has_usage)
            elif schemas:
                protocol.check_shape(json.loads(data), schemas[0], request.url.path)

        response.stream = Tee(response.stream, check)
        return response

    def handle_request(self, request):
        return self.watch(request, self.inner.handle_request(request))

    async def handle_async_request(self, request):
        return self.watch(request, await self.inner.handle_async_request(request))


class Remote:
    """What check_protocol.Lines does, over HTTP."""

    def __init__(self, server):
        self.server = server

    def ask(self, path, body):
        data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else json.dumps(body).encode()
        status, headers, found = ask(self.server.port, "POST", path, data)
        if headers["content-type"].startswith("text/event-stream"):
            return status, [event + "\n\n" for event in found.decode()[:-2].split("\n\n")]
        return status, [found.decode()]

    def client(self, seen, is_strict=True, kind=openai.OpenAI):
        limits = {"timeout": LIMIT, "trust_env": False}
        http = (httpx.Client(transport=Checked(httpx.HTTPTransport(), seen), **limits) if kind is openai.OpenAI else
                httpx.AsyncClient(transport=Checked(httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=64)), seen), **limits))
        return kind(api_key="none", base_url=self.server.url + "/v1", max_retries=0, _strict_response_validation=is_strict, http_client=http)


# ---- openai ----


def check_models(remote, name):
    client = remote.client([])
    (model,) = client.models.list().data
    assert model.id == name and client.models.retrieve(model.id) == model and model.object == "model" and model.created > 1.7e9
    for failing, status in ((lambda: client.images.generate(prompt="a"), 404), (lambda: client.models.retrieve("no/such model"), 404),
                            (lambda: client.embeddings.create(model="any", input=[]), 400)):
        try:
            failing()
            raise AssertionError("it was answered")
        except openai.APIStatusError as error:
            assert error.status_code == status and error.request_id, error


def check_embeddings(remote):
    """The package asks for base64 unless told otherwise; its type, which it validates before it decodes, has only numbers."""
    client, texts = remote.client([]), ["Once upon a time", "The cat sat on the mat.", "a"]
    found = remote.client([], is_strict=False).embeddings.create(model="any", input=texts)
    plain = client.embeddings.create(model="any", input=texts, encoding_format="float")
    assert [d.index for d in found.data] == [0, 1, 2] and found.usage == plain.usage and found.usage.prompt_tokens > 5
    for one, other in zip(found.data, plain.data):
        assert len(one.embedding) == len(other.embedding) and max(abs(a - b) for a, b in zip(one.embedding, other.embedding)) < 1e-7
        assert abs(sum(x * x for x in one.embedding) - 1) < 1e-5
    short = client.embeddings.create(model="any", input=texts[0], dimensions=8, encoding_format="float").data[0].embedding
    length = sum(x * x for x in plain.data[0].embedding[:8]) ** 0.5
    assert max(abs(a - b / length) for a, b in zip(short, plain.data[0].embedding)) < 1e-6


async def check_many(remote, n=50):
    """Answers of n requests at once are those of the same requests one after another."""
    client, rng = remote.client([], kind=openai.AsyncOpenAI), random.Random(3)
    bodies = [{"model": "any", "messages": [{"role": "user", "content": f"Tell me of {i % 7}."}], "max_tokens": rng.randint(1, 20), "seed": i % 5}
              for i in range(n)]

    async def whole(body):
        return (await client.chat.completions.create(**body)).choices[0].message.content

    async def streamed(body):
        text = ""
        async for chunk in await client.chat.completions.create(**body, stream=True):
            text += chunk.choices[0].delta.content or ""
        return text

    alone = [await whole(body) for body in bodies[:10]]
    together = await asyncio.gather(*((whole if i % 2 else streamed)(body) for i, body in enumerate(bodies)))
    assert together[:10] == alone and all(together)
    again = await asyncio.gather(*((streamed if i % 2 else whole)(body) for i, body in enumerate(bodies)))
    assert again == together
    await client.close()


# ---- Loops of tools: the agent model looks up once, and then says what it found ----

QUESTION, ANSWER, LOOKED_UP = "What is it?", "é 世🙂!", []


def look_up(text: str, n: int) -> str:
    """Looks up a word."""
    LOOKED_UP.append((text, n))
    return "A mill."


def check_loop(name, found):
    assert found == ANSWER and LOOKED_UP == [('a "quern"', 2)], f"{name}: {found!r}, {LOOKED_UP}"
    LOOKED_UP.clear()


def run_openai(remote):
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {
        "type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}, "required": ["text", "n"]}}}
    client, messages = remote.client([]), list(ASK)
    for _ in range(3):
        message = client.chat.completions.create(model="any", messages=messages, tools=[tool]).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": look_up(**json.loads(call.function.arguments))})


def run_litellm(remote):
    import litellm

    litellm.telemetry = False
    tool = {"type": "function", "function": {"name": "look_up", "description": "Looks up a word.", "parameters": {
        "type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}, "required": ["text", "n"]}}}
    messages = list(ASK)
    for stream in (True, False):
        found = litellm.completion(model="openai/agent", api_base=remote.server.url + "/v1", api_key="none", messages=messages, tools=[tool],
                                   stream=stream, num_retries=0)
        message = (litellm.stream_chunk_builder(list(found), messages=messages) if stream else found).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or []:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": look_up(**json.loads(call.function.arguments))})
    return message.content


def run_openai_agents(remote):
    import agents

    agents.set_tracing_disabled(True)
    model = agents.OpenAIChatCompletionsModel(model="agent", openai_client=remote.client([], kind=openai.AsyncOpenAI))
    agent = agents.Agent(name="one", instructions="Be brief.", model=model, tools=[agents.function_tool(look_up)])
    return agents.Runner.run_sync(agent, QUESTION, max_turns=3).final_output


def run_pydantic_ai(remote):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("agent", provider=OpenAIProvider(openai_client=remote.client([], kind=openai.AsyncOpenAI)))
    return Agent(model, tools=[look_up], system_prompt="Be brief.").run_sync(QUESTION).output


# ---- Conversations ----


async def check_second_turn(remote):
    """A follow-up evaluates what is new after the common prefix, less at most 63 tokens."""
    connection, text = Connection(remote.server.port), "The fox saw a lantern in the wood. "

    async def post(path, body):
        status, _, found = await connection.ask("POST", path, body)
        assert status == 200, found
        return json.loads(found)

    async def tokens(messages):
        prompt = (await post("/apply-template", {"messages": messages}))["prompt"]
        return (await post("/tokenize", {"content": prompt, "parse_special": True}))["tokens"]

    messages = [{"role": "user", "content": text * 20}]
    for _ in range(2):
        body = {"messages": messages, "max_tokens": 24, "temperature": 0}
        answer = (await post("/v1/chat/completions", body))["choices"][0]["message"]["content"]
        before = await tokens(messages)
        messages = [*messages, {"role": "assistant", "content": answer}, {"role": "user", "content": "And then?"}]
        after = await tokens(messages)
        common = next((i for i, (a, b) in enumerate(zip(before, after)) if a != b), min(len(before), len(after)))
        usage = (await post("/v1/chat/completions", {"messages": messages, "max_tokens": 4, "temperature": 0}))["usage"]
        assert usage["prompt_tokens"] == len(after), (usage, len(after))
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert cached >= common - 63, f"{cached} of {common} common tokens were cached"
    connection.close()


# ---- Ollama's package ----


def run_ollama(remote):
    import ollama

    client, messages = ollama.Client(host=remote.server.url), list(ASK)
    for stream in (True, False, True):
        found = client.chat(model="agent:latest", messages=messages, tools=[look_up], stream=stream, keep_alive="5m")
        parts = list(found) if stream else [found]
        assert parts[-1].done and not any(part.done for part in parts[:-1]) and parts[-1].prompt_eval_count > 0
        calls = [call for part in parts for call in part.message.tool_calls or []]
        content = "".join(part.message.content or "" for part in parts)
        messages.append({"role": "assistant", "content": content, "tool_calls": [call.model_dump() for call in calls]})
        if not calls:
            return content
        for call in calls:
            messages.append({"role": "tool", "tool_name": call.function.name, "content": look_up(**call.function.arguments)})


def check_ollama(remote):
    import ollama

    client, greedy = ollama.Client(host=remote.server.url), {"temperature": 0, "num_predict": 12}
    (model,) = client.list().models
    assert model.model == "demo" and model.size > 1e6 and len(model.digest) == 64 and model.details.family == "qwen35"
    (running,) = client.ps().models
    assert running.model == "demo" and running.context_length == 512 and running.size > model.size
    shown = client.show("demo")
    assert "completion" in shown.capabilities and "{%" in shown.template and shown.modelinfo["qwen35.embedding_length"] == 512
    for raw in (False, True):
        whole = client.generate(model="demo", prompt="Once upon", raw=raw, options=greedy)
        parts = list(client.generate(model="demo", prompt="Once upon", raw=raw, options=greedy, stream=True))
        assert whole.response and "".join(part.response for part in parts) == whole.response and whole.done_reason == "length"
        assert whole.eval_count == 12 and parts[-1].eval_count == 12 and whole.eval_duration > 0
    openai_text = remote.client([]).completions.create(model="any", prompt="Once upon", max_tokens=12, temperature=0).choices[0].text
    assert openai_text == whole.response
    logprobs = client.generate(model="demo", prompt="a", raw=True, options=greedy, logprobs=True, top_logprobs=2).logprobs
    assert len(logprobs) == 12 and all(len(entry.top_logprobs) == 2 for entry in logprobs)
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    found = client.chat(model="demo", messages=list(ASK), format=schema)
    assert json.loads(found.message.content)["n"] in (1, 2)
    assert client.generate(model="demo").done_reason == "load" and client.chat(model="demo").done_reason == "load"
    embedded = client.embed(model="demo", input=["Once upon a time", "b"])
    of_openai = remote.client([]).embeddings.create(model="any", input="Once upon a time", encoding_format="float").data[0].embedding
    assert len(embedded.embeddings) == 2 and max(abs(a - b) for a, b in zip(embedded.embeddings[0], of_openai)) < 1e-7
    raw = client.embeddings(model="demo", prompt="Once upon a time").embedding
    length = sum(x * x for x in raw) ** 0.5
    assert length > 2 and max(abs(a / length - b) for a, b in zip(raw, of_openai)) < 1e-6
    for failing, status in ((lambda: client.chat(model="demo", messages=[{"role": "user", "content": "a", "images": [b"abcd"]}]), 400),
                            (lambda: client.pull("x"), 501), (lambda: client.delete("x"), 501),
                            (lambda: client.generate(model="demo", prompt="a", suffix="b"), 501)):
        try:
            failing()
            raise AssertionError("it was answered")
        except ollama.ResponseError as error:
            assert error.status_code == status and "{" not in error.error, error


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs=3)
    parser.add_argument("--random", type=int, default=6)
    args = parser.parse_args()
    seed = ("--seed", "1")  # of random bodies without one, whose answers with and without a stream are compared
    with Server(args.models[0], "-c", "512", "--max-tokens", "64", "--alias", "demo", *seed) as demo, Server(args.models[1], *seed) as caller:
        one, two = Remote(demo), Remote(caller)
        check_models(one, "demo")
        check_embeddings(one)
        check_ollama(one)
        protocol.check_llama(one)
        protocol.check_formats(one)
        protocol.check_client_texts(one)
        protocol.check_client_chats(two, one)
        asyncio.run(check_second_turn(one))
        asyncio.run(check_many(one))
        protocol.run_random(one, args.random, 1)
        protocol.run_random(two, args.random, 2)
    with Server(args.models[2]) as agent:
        for run in (run_openai, run_litellm, run_openai_agents, run_pydantic_ai, run_ollama):
            check_loop(run.__name__, run(Remote(agent)))
            print(f"{run.__name__}: a loop of tools")
    print("all passed")


main()
