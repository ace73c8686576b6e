"""First requests of two agents, of the shape that their public sources have: all their tools, system texts and headers, with texts of
these tests' own, in about 25,000 tokens of a tokeniser of bytes; with a sanitizer the texts are shorter.

`look_up` stands for a tool of an MCP server: the models of these tests call it.
"""

import os

SHORTER = 16 if os.environ.get("QN_SANITIZE") else 1
LOOK_UP = {"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}, "required": ["text", "n"], "additionalProperties": False}


def text_of(what, length):
    """A text of so many bytes, no two of which are alike for different things."""
    length //= SHORTER
    lines, number, size = [], 0, 0
    while size < length:
        number += 1
        lines.append(f"{number}. Of {what}: grind {number * 7 % 101} measures of rye, then rest for {number * 13 % 59} turns of the stone.\n")
        size += len(lines[-1])
    return "".join(lines)[:length]


def schema(required=(), **properties):
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def enum(*values):
    return {"type": "string", "enum": list(values)}


def list_of(items):
    return {"type": "array", "items": items}


TEXT, NUMBER, FLAG = {"type": "string"}, {"type": "number"}, {"type": "boolean"}
TODO = schema(["content", "status", "activeForm"], content={"type": "string", "minLength": 1}, status=enum("pending", "in_progress", "completed"), activeForm=TEXT)
OPTION = schema(["label", "description"], label=TEXT, description=TEXT)
QUESTION = schema(["question", "header", "options", "multiSelect"], question=TEXT, header=TEXT, options={**list_of(OPTION), "minItems": 2, "maxItems": 4}, multiSelect=FLAG)

CLAUDE_CODE_TOOLS = {
    "Task": schema(["description", "prompt", "subagent_type"], description=TEXT, prompt=TEXT, subagent_type=TEXT, model=enum("sonnet", "opus", "haiku"), resume=TEXT),
    "TaskOutput": schema(["task_id"], task_id=TEXT, block={"type": "boolean", "default": True}, timeout={"type": "number", "minimum": 0, "maximum": 600000}),
    "Bash": schema(["command"], command=TEXT, timeout=NUMBER, description=TEXT, run_in_background=FLAG),
    "Glob": schema(["pattern"], pattern=TEXT, path=TEXT),
    "Grep": schema(["pattern"], **{"pattern": TEXT, "path": TEXT, "glob": TEXT, "output_mode": enum("content", "files_with_matches", "count"), "-A": NUMBER, "-B": NUMBER,
                                   "-n": FLAG, "-i": FLAG, "head_limit": NUMBER, "multiline": FLAG}),
    "ExitPlanMode": {"type": "object", "properties": {}, "additionalProperties": True},
    "Read": schema(["file_path"], file_path=TEXT, offset=NUMBER, limit=NUMBER),
    "Edit": schema(["file_path", "old_string", "new_string"], file_path=TEXT, old_string=TEXT, new_string=TEXT, replace_all={"type": "boolean", "default": False}),
    "Write": schema(["file_path", "content"], file_path=TEXT, content=TEXT),
    "NotebookEdit": schema(["notebook_path", "new_source"], notebook_path=TEXT, cell_id=TEXT, new_source=TEXT, cell_type=enum("code", "markdown"),
                           edit_mode=enum("replace", "insert", "delete")),
    "WebFetch": schema(["url", "prompt"], url={"type": "string", "format": "uri"}, prompt=TEXT),
    "TodoWrite": schema(["todos"], todos=list_of(TODO)),
    "WebSearch": schema(["query"], query={"type": "string", "minLength": 2}, allowed_domains=list_of(TEXT), blocked_domains=list_of(TEXT)),
    "KillShell": schema(["shell_id"], shell_id=TEXT),
    "AskUserQuestion": schema(["questions"], questions={**list_of(QUESTION), "minItems": 1, "maxItems": 4}, answers={"type": "object", "additionalProperties": TEXT}),
    "Skill": schema(["skill"], skill=TEXT, args=TEXT),
    "EnterPlanMode": schema(),
    "look_up": LOOK_UP,
}

CLAUDE_CODE_HEADERS = {
    "anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,effort-2025-11-24",
    "anthropic-dangerous-direct-browser-access": "true", "x-app": "cli", "User-Agent": "claude-cli/2.1.0 (external, cli)", "X-Stainless-Lang": "js",
    "X-Stainless-Retry-Count": "0", "X-Stainless-Timeout": "600", "Accept": "application/json",
}


def claude_code(number):
    """The body of a request; the header in its system text differs in each of them."""
    once = {"type": "ephemeral"}
    return {
        "model": "claude-opus-4-5", "max_tokens": 32000, "stream": True, "metadata": {"user_id": "user_0_account__session_1"},
        "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "system": [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.0; cc_entrypoint=cli; cch={number:05x};"},
                   {"type": "text", "text": "You help with software in a terminal.", "cache_control": once},
                   {"type": "text", "text": text_of("the whole work", 7000), "cache_control": once}],
        "tools": [{"name": name, "description": text_of(name, 500), "input_schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", **parameters}}
                  for name, parameters in CLAUDE_CODE_TOOLS.items()],
        "messages": [{"role": "user", "content": [
            {"type": "text", "text": f"<system-reminder>\n{text_of('the project', 2000)}</system-reminder>"},
            {"type": "text", "text": "What is it?", "cache_control": once}]}],
    }


CODEX_TOOLS = {
    "exec_command": schema(["cmd"], cmd=TEXT, workdir=TEXT, shell=TEXT, login=FLAG, yield_time_ms=NUMBER, max_output_tokens=NUMBER,
                           sandbox_permissions=enum("use_default", "require_escalated"), justification=TEXT, prefix_rule=list_of(TEXT)),
    "write_stdin": schema(["session_id"], session_id=NUMBER, chars=TEXT, yield_time_ms=NUMBER, max_output_tokens=NUMBER),
    "update_plan": schema(["plan"], explanation=TEXT, plan=list_of(schema(["step", "status"], step=TEXT, status=enum("pending", "in_progress", "completed")))),
    "request_user_input": schema(["questions"], questions=list_of(schema(["id", "question"], id=TEXT, header=TEXT, question=TEXT, options=list_of(OPTION)))),
    "view_image": schema(["path"], path=TEXT),
    "list_mcp_resources": schema(server=TEXT, cursor=TEXT),
    "read_mcp_resource": schema(["server", "uri"], server=TEXT, uri=TEXT),
    "look_up": LOOK_UP,
}
PATCH_GRAMMAR = 'start: begin hunk+ end\nbegin: "*** Begin" LF\nend: "*** End" LF?\nhunk: "+" /(.*)/ LF\n%import common.LF\n'


def message(role, *texts):
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text} for text in texts]}


def codex():
    tools = [{"type": "function", "name": name, "description": text_of(name, 800), "strict": False, "parameters": parameters} for name, parameters in CODEX_TOOLS.items()]
    tools += [{"type": "custom", "name": "apply_patch", "description": text_of("patches", 600), "format": {"type": "grammar", "syntax": "lark", "definition": PATCH_GRAMMAR}},
              {"type": "web_search", "external_web_access": False},
              {"type": "namespace", "name": "mcp__one", "description": "Tools of a server.", "tools": []}]
    return {
        "model": "gpt-5.2-codex", "instructions": text_of("the whole work", 8000), "tools": tools, "tool_choice": "auto", "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"}, "store": False, "stream": True, "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0198c0de-0000-7000-8000-000000000000", "text": {"verbosity": "low"}, "client_metadata": {"originator": "codex_cli_rs"},
        "input": [message("developer", text_of("permissions", 2500)),
                  message("user", f"# Instructions of the project\n\n{text_of('the project', 4000)}",
                          "<environment_context>\n  <cwd>/home/one/mill</cwd>\n  <shell>bash</shell>\n</environment_context>"),
                  message("user", "What is it?")],
    }
