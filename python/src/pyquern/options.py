"""Options of a generation, with the names of OpenAI, vLLM and llama-cpp-python, and their conversion to the library's
parameters.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import json
import math
import operator
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from pyquern._cdef import ffi
from pyquern._lib import InvalidError, UnsupportedError, check, lib, sized
from pyquern.answers import ChatCompletion, ChatEvent

MAX_CTX = 1 << 30
"""The library's limit of the tokens of a context."""

Message = Mapping[str, Any] | ChatCompletion
"""A message in OpenAI's form, or an answer to continue."""

Draft = Literal["auto", "off", "ngram", "mtp", "dflash", "model"]
"""Where drafted tokens come from (docs/speculation.md). "model" and "dflash" need a Model with a draft_model of that kind,
"mtp" one with such a draft_model or a block of its own."""

ToolChoice = Literal["auto", "required", "none"] | Mapping[str, Any]


class SamplingOptions(TypedDict, total=False):
    """How tokens are sampled. Each comment names the default; None means the default."""

    temperature: float | None
    """0.8; 0 is greedy."""
    top_k: int | None
    """Keep the k most likely tokens: 40; 0 or -1 keeps all."""
    top_p: float | None
    """Keep the most likely tokens up to this probability: 0.95; 1 keeps all."""
    min_p: float | None
    """Drop tokens less likely than this times the most likely: 0.05; 0 drops none."""
    typical_p: float | None
    """Keep the tokens whose surprisals are nearest to the entropy, up to this probability: 1, off."""
    top_n_sigma: float | None
    """Keep the tokens with logits within this number of standard deviations of the largest: 0, off."""
    xtc_probability: float | None
    """XTC: with this probability drop all likely tokens except the least likely of them: 0."""
    xtc_threshold: float | None
    """The probability from which on XTC considers a token likely: 0.1."""
    dry_multiplier: float | None
    """DRY: if a token would extend a repetition of n tokens, this times dry_base to the power of n - dry_allowed_length
    is subtracted from its logit: 0, off."""
    dry_base: float | None
    """1.75; at least 1."""
    dry_allowed_length: int | None
    """Shorter repetitions are not penalised: 2."""
    dry_penalty_last_n: int | None
    """The number of recent tokens that DRY considers: -1, all."""
    dry_sequence_breakers: Sequence[str] | None
    """Texts that end a repetition: a newline, a colon, a quotation mark and an asterisk; at most 64, of 64 bytes
    each."""
    mirostat: int | None
    """2: Mirostat 2.0 instead of the filters, on the CPU: 0, off."""
    mirostat_tau: float | None
    """Mirostat's target of the mean surprise, in bits: 5."""
    mirostat_eta: float | None
    """Mirostat's learning rate: 0.1."""
    repetition_penalty: float | None
    """Above 1, recent tokens become less likely: 1."""
    repeat_last_n: int | None
    """The number of recent tokens that repetition_penalty considers: 64."""
    presence_penalty: float | None
    """Subtracted from the logits of tokens generated so far: 0."""
    frequency_penalty: float | None
    """The same, multiplied by the number of occurrences: 0."""
    seed: int | None
    """By default an answer gets a new seed, which it reports."""


class AnswerOptions(SamplingOptions, total=False):
    """When an answer ends, its format, and which parts of it are reported."""

    max_tokens: int | None
    """Limit of generated tokens, 0 or more. By default, with None and, as in vLLM and llama.cpp, with -1: only the
    context."""
    stop: str | Sequence[str] | None
    """Strings that end the answer. They are not part of its text; in chats they are matched in the content."""
    stop_token_ids: Sequence[int] | None
    """Tokens that end the answer, as end tokens do."""
    min_tokens: int | None
    """The least number of tokens, at most max_tokens, unless the answer's format allows nothing but the end: 0."""
    ignore_eos: bool | None
    """Continue after end tokens."""
    skip_special_tokens: bool | None
    """Omit the names of special tokens from the text: True."""
    return_tokens: bool | None
    """Include the token ids in answers."""
    json_schema: Mapping[str, Any] | bool | str | type | None
    """The text is JSON that fits a schema: a dict, its JSON text, or a class of pydantic."""
    strict: bool | None
    """Unsupported keywords of the schema are an error; with False they are ignored: True."""
    json_object: bool | None
    """The text is a JSON object."""
    json_whitespace: Literal["default", "indent", "compact", "any"] | None
    """White space of JSON under json_schema, json_object and tools: "default", that of json.dumps."""
    json_property_order: Literal["schema", "any"] | None
    """Order of properties, that of the schema or any: "schema"."""
    regex: str | None
    """The whole text matches a regular expression, ECMAScript's with the u flag."""
    choices: Sequence[str] | None
    """The text is one of these."""
    grammar: str | None
    """The text fits a grammar in llama.cpp's GBNF."""
    draft: Draft | None
    """Tokens that a step evaluates ahead, which change the speed alone: "auto", where that is faster."""


class ChatOnlyOptions(TypedDict, total=False):
    """Additional options of chats."""

    tools: Sequence[Mapping[str, Any]] | None
    """Functions, in OpenAI's form."""
    tool_choice: ToolChoice | None
    """ "auto": the model may call them; "required": it must; "none": they are omitted from the prompt; a function in
    OpenAI's
    form: it must call that one."""
    parallel_tool_calls: bool | None
    """Allow more than one call in an answer: True."""
    enable_thinking: bool | None
    """Whether the model reasons, if its chat template can switch that."""
    reasoning_effort: str | None
    """ "none" to "max"; becomes the nearest level that the chat template knows."""
    reasoning_budget: int | None
    """Limit of the tokens of reasoning, 0 or more, after which it is ended. By default and with -1: no limit."""
    chat_template_kwargs: Mapping[str, Any] | None
    """Other variables of the chat template."""


class RequestOptions(AnswerOptions, total=False):
    """Additional options of requests of a scheduler, which Model.generate and Model.chat use."""

    logit_bias: Mapping[int, float] | Mapping[str, float] | None
    """Added to the logits of tokens, by their ids."""
    logprobs: int | None
    """Report the log probability of each token, and this number of the most likely tokens at its position: 0 to 20."""
    priority: int | None
    """Requests of higher priority begin first: 0."""
    timeout: float | None
    """Seconds, more than 0, after which the request ends with the finish_reason "deadline": no limit."""
    cache_scope: str | None
    """Evaluated prefixes are shared only between requests of one scope."""


class TextOptions(RequestOptions, total=False):
    """Options of Model.generate."""

    parse_special: bool | None
    """Names of special tokens in the prompt become these tokens: True. Use False for untrusted text."""
    add_bos: bool | None
    """Begin the prompt with the beginning-of-text token, if the model has one: True."""


class SubmitTextOptions(TextOptions, total=False):
    """Options of Scheduler.submit."""

    on_text: Callable[[str], object] | None
    """Called for each piece of text, from a thread of the scheduler. False or an exception ends the request."""


class ChatOptions(RequestOptions, ChatOnlyOptions, total=False):
    """Options of Model.chat."""


class SubmitChatOptions(ChatOptions, total=False):
    """Options of Scheduler.submit_chat."""

    on_event: Callable[[ChatEvent], object] | None
    """As on_text."""


class SessionTextOptions(AnswerOptions, total=False):
    """Options of Session.generate."""

    parse_special: bool | None
    add_bos: bool | None


class SessionChatOptions(AnswerOptions, ChatOnlyOptions, total=False):
    """Options of Session.chat."""


class Options:
    """The options of a call; each is taken once. Keeps objects alive to which the library's parameters point."""

    def __init__(self, function: str, given: Mapping[str, Any]) -> None:
        self._function = function
        self._given = {name: value for name, value in given.items() if value is not None}
        self._allowed: set[str] = set()
        self._keep: list[Any] = []

    def take(self, name: str, default: Any = None) -> Any:
        return self._given.pop(name, default)

    def take_flag(self, name: str, default: bool) -> bool:
        return flag(self.take(name, default), name)

    def take_function(self, name: str) -> Any:
        function = self.take(name)
        if function is not None and not callable(function):
            raise TypeError(f"{name}: {function!r}, expected a function")
        return function

    def end(self) -> None:
        """Call after all options have been taken: raises TypeError for the rest, which are unknown."""
        for name in self._given:
            raise TypeError(f"{self._function}() has no option {name!r}")

    def keep(self, value: Any) -> Any:
        self._keep.append(value)
        return value

    def strings(self, texts: Sequence[str], name: str) -> Any:
        if (
            not isinstance(texts, Sequence)
            or not all(isinstance(text, str) for text in texts)
            or isinstance(texts, str)
        ):
            raise TypeError(f"{name}: {texts!r}, expected strings")
        return self.keep(ffi.new("char *[]", [self.keep(ffi.new("char[]", terminated(text, name))) for text in texts]))


def terminated(text: str, name: str) -> bytes:
    """A text as UTF-8 for a C string."""
    if not isinstance(text, str):
        raise TypeError(f"{name}: {text!r}, expected a string")
    if "\0" in text:
        raise InvalidError(f"{name}: it has U+0000 at {text.index(chr(0))}")
    return text.encode()


Pooling = Literal["mean", "cls", "last"]


def pooling_name(value: int) -> Pooling | None:
    """The name of a qn_pooling."""
    names: dict[int, Pooling] = {lib.QN_POOLING_MEAN: "mean", lib.QN_POOLING_CLS: "cls", lib.QN_POOLING_LAST: "last"}
    return names.get(value)


def pooling_of(name: str) -> int:
    """The qn_pooling of a name."""
    values = {"mean": lib.QN_POOLING_MEAN, "cls": lib.QN_POOLING_CLS, "last": lib.QN_POOLING_LAST}
    if name not in values:
        raise InvalidError(f"pooling: {name!r}, expected 'mean', 'cls' or 'last'")
    return int(values[name])


def integer(value: Any, name: str, least: int, most: int) -> int:
    """An integer, also numpy's, within a range."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: {value!r}, expected an integer")
    if not least <= operator.index(value) <= most:
        raise InvalidError(f"{name}: {value}, expected {least} to {most}")
    return operator.index(value)


def assign(struct: Any, field: str, value: Any, name: str) -> None:
    """Sets a numeric field; an error names the option."""
    owner = ffi.typeof(struct)
    kind = dict((owner.item if owner.kind == "pointer" else owner).fields)[field].type
    if kind.cname not in ("float", "double"):
        bits, is_unsigned = 8 * ffi.sizeof(kind), int(ffi.cast(kind, -1)) > 0
        value = integer(
            value, name, 0 if is_unsigned else -(2 ** (bits - 1)), 2 ** (bits if is_unsigned else bits - 1) - 1
        )
    try:
        if isinstance(value, (bool, str, bytes)):
            raise TypeError
        setattr(struct, field, value)
    except TypeError:
        raise TypeError(f"{name}: {value!r}, expected a number") from None
    except OverflowError:
        raise InvalidError(f"{name}: {value!r} is out of range, expected a number of 64 bits") from None


def flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}: {value!r}, expected True or False")
    return value


def token_list(ids: Any, name: str, expected: str = "token ids") -> list[int]:
    """Token ids: integers in the range of the library's type. The library checks them against the vocabulary."""
    if isinstance(ids, (str, bytes, bytearray)) or not isinstance(ids, Iterable):
        raise TypeError(f"{name}: {ids!r}, expected {expected}")
    return [integer(token, name, 0, 2**31 - 1) for token in ids]


def token_ids(ids: Any, name: str) -> Any:
    """A qn_token array of them."""
    return ffi.new("qn_token[]", token_list(ids, name))


def kv_text(kv: str | None) -> Any:
    """The name of a KV cache format; NULL for None."""
    if kv is None:
        return ffi.NULL
    text = ffi.new("char[]", terminated(kv, "kv"))
    check(lib.qn_kv_check(text))
    return text


_SAMPLING = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "top_n_sigma": "top_n_sigma",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "dry_multiplier": "dry_multiplier",
    "dry_base": "dry_base",
    "dry_allowed_length": "dry_allowed_length",
    "dry_penalty_last_n": "dry_penalty_last_n",
    "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
    "repetition_penalty": "repeat_penalty",
    "repeat_last_n": "repeat_last_n",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}


def _take_breakers(sampling: Any, model: Any, options: Options) -> None:
    """DRY's breakers, if DRY is on: the model's tokens of the texts."""
    texts = options.take("dry_sequence_breakers")
    if texts is not None:
        given, n = options.strings(texts, "dry_sequence_breakers"), len(texts)
    else:
        count = ffi.new("size_t *")
        given, n = lib.qn_dry_default_breakers(count), count[0]
    if not sampling.dry_multiplier > 0:
        return
    if n and model is None:
        raise InvalidError("dry_sequence_breakers: they become tokens of a model, expected model=, or no breakers: []")
    if not n:
        return
    out = ffi.new("qn_token **"), ffi.new("size_t *")
    check(lib.qn_dry_breakers(model, given, n, *out))
    sampling.dry_breakers = options.keep(ffi.gc(out[0][0], lib.qn_free_tokens))
    sampling.n_dry_breakers = out[1][0]


def fill_sampling(sampling: Any, model: Any, options: Options) -> int:
    """Fills a qn_sampling. Returns the seed."""
    for name, field in _SAMPLING.items():
        value = options.take(name)
        if value is not None:
            assign(sampling, field, 0 if name == "top_k" and value == -1 else value, name)
    _take_breakers(sampling, model, options)
    seed = options.take("seed")
    seed = secrets.randbits(64) if seed is None else integer(seed, "seed", -(2**63), 2**64 - 1) & (2**64 - 1)
    sampling.seed = seed
    return int(seed)


# ---- Grammars ----


def _closed(schema: Any) -> Any:
    """A pydantic schema whose objects allow no undeclared properties: these would be ignored, and cost tokens."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    result = {
        name: {key: _closed(item) for key, item in value.items()} if name in ("properties", "$defs") else _closed(value)
        for name, value in schema.items()
        if name not in ("default", "examples")
    }
    return {"additionalProperties": False, **result} if "properties" in result else result


def _schema_text(schema: Any) -> str:
    if isinstance(schema, str):
        return schema
    if hasattr(schema, "model_json_schema"):
        schema = _closed(schema.model_json_schema())
    if not isinstance(schema, (Mapping, bool)):
        raise TypeError(f"json_schema: {schema!r}, expected a dict, JSON text or a class of pydantic")
    return json.dumps(schema)


_STYLES = {"json_whitespace": ("default", "indent", "compact", "any"), "json_property_order": ("schema", "any")}


def _take_style(options: Options) -> Any:
    """A qn_json_style."""
    style = sized("qn_json_style")
    style.closed = True
    for (name, known), field in zip(_STYLES.items(), ("space", "order"), strict=True):
        value = options.take(name, known[0])
        if value not in known:
            raise InvalidError(f"{name}: {value!r}, expected one of {', '.join(map(repr, known))}")
        setattr(style, field, known.index(value))
    return style


def _compile(model: Any, kind: int, text: str, style: Any, out: Any, name: str) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{name}: {text!r}, expected a string")
    data = text.encode()
    check(lib.qn_grammar_create_in(model, ffi.NULL, style, kind, data, len(data), out))


def _take_format(model: Any, style: Any, options: Options) -> Any:
    """The grammar of the text; None if it may be any."""
    is_strict = options.take_flag("strict", True)
    given = {name: options.take(name) for name in ("json_schema", "regex", "choices", "grammar")}
    given["json_object"] = options.take_flag("json_object", False) or None
    named = [name for name, value in given.items() if value is not None]
    if not named:
        return None
    if len(named) > 1:
        raise InvalidError(f"{named[1]}: it is given with {named[0]}, expected one of them")
    out = ffi.new("qn_grammar **")
    name, value = named[0], given[named[0]]
    if name == "choices":
        check(lib.qn_grammar_create_choices(model, options.strings(value, name), len(value), out))
    elif name == "json_schema":
        kind = lib.QN_GRAMMAR_SCHEMA_STRICT if is_strict else lib.QN_GRAMMAR_SCHEMA
        _compile(model, kind, _schema_text(value), style, out, name)
    elif name == "json_object":
        _compile(model, lib.QN_GRAMMAR_JSON, "", style, out, name)
    else:
        _compile(model, lib.QN_GRAMMAR_REGEX if name == "regex" else lib.QN_GRAMMAR_GBNF, value, style, out, name)
    return ffi.gc(out[0], lib.qn_grammar_free)


def _has_strict_tool(tools: Sequence[Mapping[str, Any]]) -> bool:
    return any(tool.get("function", {}).get("strict") is True for tool in tools)


def _take_calls(
    model: Any, tools: Sequence[Mapping[str, Any]], text: bytes, style: Any, options: Options
) -> tuple[Any, int]:
    """The grammar of calls, and where it begins. If calls are optional and the tools are too large for a grammar, there
    is none, unless a tool is strict."""
    choice = options.take("tool_choice", "auto")
    params, out = sized("qn_call_params"), ffi.new("qn_grammar **")
    params.tools, params.length = options.keep(ffi.from_buffer(text)), len(text)
    params.style = style
    params.is_single = not options.take_flag("parallel_tool_calls", True)
    params.is_required = choice != "auto"
    if isinstance(choice, Mapping):
        name = choice.get("function", {}).get("name")
        if not any(tool.get("function", {}).get("name") == name for tool in tools):
            raise InvalidError(f"tool_choice: {name!r} is not among the tools")
        params.name = options.keep(ffi.new("char[]", terminated(name, "tool_choice")))
    elif choice not in ("auto", "required"):
        raise InvalidError(f"tool_choice: {choice!r}, expected 'auto', 'required', 'none' or a function")
    status = lib.qn_grammar_create_calls(model, params, out)
    if status in (lib.QN_ERR_INVALID, lib.QN_ERR_UNSUPPORTED) and choice == "auto" and not _has_strict_tool(tools):
        return None, 0
    check(status)
    return ffi.gc(out[0], lib.qn_grammar_free), (
        lib.QN_GRAMMAR_AT_CALL if choice == "auto" else lib.QN_GRAMMAR_AFTER_REASONING
    )


# ---- Conversations ----


_FUNCTION = '{"type": "function", "function": {"name": ...}}'


def _has_function(value: Any) -> bool:
    """Whether a value is a tool or a call in OpenAI's form, with a name."""
    function = value.get("function") if isinstance(value, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return isinstance(name, str) and bool(name)


_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_ROLES = ("system", "developer", "user", "assistant", "tool")


def _check_message(message: Mapping[str, Any], index: int) -> None:
    """Refuses messages that the server refuses with a 400."""
    role = message.get("role")
    if role not in _ROLES:
        found = "missing" if role is None else repr(role)
        raise InvalidError(
            f"messages[{index}]: role is {found}, expected {', '.join(map(repr, _ROLES[:-1]))} or {_ROLES[-1]!r}"
        )
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        raise InvalidError(f"messages[{index}]: content is missing, expected a string or a list of texts")
    if content is not None and not isinstance(content, (str, list, tuple)):
        raise TypeError(f"messages[{index}]: content is {content!r}, expected a string or a list of texts")
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, (list, tuple)):
        raise TypeError(f"messages[{index}]: tool_calls is {calls!r}, expected a list of calls")
    for call in calls or ():
        if not _has_function(call):
            raise InvalidError(f"messages[{index}]: tool call {call!r}, expected {_FUNCTION}")


def _message(message: Message, index: int) -> dict[str, Any]:
    """A message as chat templates expect it: arguments of calls are objects, and content is present."""
    if not isinstance(message, (ChatCompletion, Mapping)):
        raise TypeError(f"messages[{index}]: {message!r}, expected a message in OpenAI's form")
    result = dict(message.message if isinstance(message, ChatCompletion) else message)
    _check_message(result, index)
    if result.get("tool_calls"):
        result["tool_calls"] = [_call(call) for call in result["tool_calls"]]
        if result.get("content") is None:
            result["content"] = ""
    return result


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(call)
    function = dict(call["function"])
    if isinstance(function.get("arguments"), str):
        try:
            function["arguments"] = json.loads(function["arguments"] or "{}")
        except ValueError as error:
            raise InvalidError(f"arguments of {function.get('name')!r}: {error}") from None
    result["function"] = function
    return result


def conversation(messages: Sequence[Message], variables: Mapping[str, Any]) -> bytes:
    """A conversation in the library's form, JSON."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
        raise TypeError(f"messages: {messages!r}, expected a list of messages")
    taken = [_message(message, index) for index, message in enumerate(messages)]
    if not taken:
        raise InvalidError("messages: there are none, expected at least one")
    return json.dumps({"messages": taken, **variables}).encode()


def _take_tools(options: Options) -> list[Mapping[str, Any]]:
    tools = options.take("tools", ())
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Iterable):
        raise TypeError(f"tools: {tools!r}, expected a list of functions in OpenAI's form")
    tools = list(tools)
    for index, tool in enumerate(tools):
        if not _has_function(tool):
            raise InvalidError(f"tools[{index}]: {tool!r}, expected {_FUNCTION}")
    return tools


def _take_variables(options: Options) -> dict[str, Any]:
    """Takes the chat template's variables from the options."""
    given = options.take("chat_template_kwargs", {})
    if not isinstance(given, Mapping):
        raise TypeError(f"chat_template_kwargs: {given!r}, expected a dict")
    variables = {"add_generation_prompt": True, **given}
    thinking, effort = options.take("enable_thinking"), options.take("reasoning_effort")
    if thinking is not None:
        variables["enable_thinking"] = flag(thinking, "enable_thinking")
    if effort is not None:
        if effort not in _EFFORTS:
            raise InvalidError(
                f"reasoning_effort: {effort!r}, expected {', '.join(map(repr, _EFFORTS[:-1]))} or {_EFFORTS[-1]!r}"
            )
        variables["reasoning_effort"] = effort
    return variables


class ChatPrompt:
    """The prompt of a chat: its conversation and its tools."""

    def __init__(self, messages: Sequence[Message], options: Options) -> None:
        self.tools = _take_tools(options)
        if options._given.get("tool_choice") == "none":
            options.take("tool_choice")
            self.tools = []
        variables = _take_variables(options)
        if self.tools:
            variables["tools"] = self.tools
        self.json = conversation(messages, variables)
        self.tools_json = json.dumps(self.tools).encode()


_DRAFTS = {"auto": "AUTO", "off": "OFF", "ngram": "NGRAM", "mtp": "MTP", "dflash": "DFLASH", "model": "MODEL"}


def draft_kind(value: object) -> int:
    """The qn_draft_kind of this name."""
    if not isinstance(value, str) or value not in _DRAFTS:
        raise InvalidError(f"draft: {value!r}, expected one of {', '.join(_DRAFTS)}")
    kind: int = getattr(lib, f"QN_DRAFT_{_DRAFTS[value]}")
    return kind


def _take_limit(options: Options, name: str) -> int:
    """A number of tokens; -1: no limit."""
    return integer(options.take(name, -1), name, -1, 2**63 - 1)


def fill_answer(
    params: Any, model: Any, options: Options, prompt: ChatPrompt | None, draft: Draft = "auto"
) -> int:
    """Fills the fields that requests of sessions and schedulers share; `draft` is that of a request that does not say.
    Returns the seed."""
    seed = fill_sampling(params.sampling, model, options)
    params.max_tokens = _take_limit(options, "max_tokens")
    params.ignore_end = options.take_flag("ignore_eos", False)
    params.show_special = not options.take_flag("skip_special_tokens", True)
    stop = options.take("stop", ())
    stop = [stop] if isinstance(stop, str) else list(stop) if isinstance(stop, Iterable) else stop
    params.stop, params.n_stop = options.strings(stop, "stop"), len(stop)
    ids = token_ids(options.take("stop_token_ids", ()), "stop_token_ids")
    params.stop_tokens, params.n_stop_tokens = options.keep(ids), len(ids)
    params.min_tokens = integer(options.take("min_tokens", 0), "min_tokens", 0, 2**63 - 1)
    params.draft = draft_kind(options.take("draft", draft))
    style = _take_style(options)
    grammar = _take_format(model, style, options)
    when = lib.QN_GRAMMAR_AFTER_REASONING if prompt else lib.QN_GRAMMAR_AT_ONCE
    if prompt:
        params.reasoning_budget = _take_limit(options, "reasoning_budget")
    if prompt and prompt.tools:
        if grammar:
            raise UnsupportedError("tools: they are given with a format of the text, expected one of them")
        grammar, when = _take_calls(model, prompt.tools, prompt.tools_json, style, options)
    elif prompt:
        options.take("parallel_tool_calls")
        if options.take("tool_choice", "auto") != "auto":
            raise InvalidError("tool_choice: it is given without tools")
    if grammar:
        params.grammar, params.grammar_trigger.when = options.keep(grammar), when
    return seed


def _take_bias(options: Options) -> Any:
    """A qn_logit_bias array. Keys may be strings, as in JSON."""
    given = options.take("logit_bias", {})
    if not isinstance(given, Mapping):
        raise TypeError(f"logit_bias: {given!r}, expected a dict of token ids and numbers")
    bias = ffi.new("qn_logit_bias[]", len(given))
    for at, (token, value) in zip(bias, given.items(), strict=True):
        is_number = isinstance(token, str) and token.isascii() and token.isdigit()
        at.token = integer(int(token) if is_number else token, "logit_bias", 0, 2**31 - 1)
        assign(at, "value", value, f"logit_bias of {token}")
    return bias


def fill_request(params: Any, options: Options) -> None:
    """Fills the fields that only requests of schedulers have."""
    bias = _take_bias(options)
    params.bias, params.n_bias = options.keep(bias), len(bias)
    logprobs, timeout = options.take("logprobs"), options.take("timeout")
    if logprobs is not None:
        params.n_logprobs = integer(logprobs, "logprobs", 0, lib.QN_MAX_LOGPROBS)
    assign(params, "priority", options.take("priority", 0), "priority")
    if timeout is not None:
        assign(params, "deadline", timeout, "timeout")
        if not 0 < params.deadline < math.inf:
            raise InvalidError(f"timeout: {timeout!r}, expected more than 0 seconds")
    scope = options.take("cache_scope")
    if scope is not None:
        params.scope = options.keep(ffi.new("char[]", terminated(scope, "cache_scope")))
