-- For haproxy.cfg: the text by which a replica is chosen. It is the system text and what the user said before the first answer, which
-- all turns of a conversation have in common.

local MAX_DEPTH = 100

-- Where the string that begins at s[i] ends: at a quote before which there is an even number of backslashes.
local function end_of_string(s, i)
    local last = i
    repeat
        last = s:find('"', last + 1, true)
        local first = last
        while s:byte(first - 1) == 92 do
            first = first - 1
        end
    until (last - first) % 2 == 0
    return last
end

-- Reads the JSON value at s[i] into into[name] and returns what is behind it. Strings keep their escapes; numbers, true, false and null
-- are left out. What was read before an error, as where a long body is cut off, stays in the tables.
local function read(s, i, into, name, depth)
    i = s:find("%S", i)
    local open = s:sub(i, i)
    if open == '"' then
        local last = end_of_string(s, i)
        into[name] = s:sub(i + 1, last - 1)
        return last + 1
    end
    if open ~= "{" and open ~= "[" then
        return (s:find("[,%]}]", i))
    end
    assert(depth < MAX_DEPTH)
    local value, key = {}, 0
    into[name] = value
    i = s:find("%S", i + 1)
    while not s:find("^[%]}]", i) do
        if open == "{" then
            local last = end_of_string(s, i)
            key = s:sub(i + 1, last - 1)
            i = s:find(":", last, true) + 1
        else
            key = key + 1
        end
        i = s:find("[,%]}]", read(s, i, value, key, depth + 1))
        if s:sub(i, i) == "," then
            i = s:find("%S", i + 1)
        end
    end
    return i + 1
end

-- A text is a string, or a list of parts of which some have texts.
local function text_of(content)
    local texts = {}
    if type(content) == "string" then
        return content
    end
    for _, part in ipairs(type(content) == "table" and content or {}) do
        if type(part) == "table" and type(part.text) == "string" then
            texts[#texts + 1] = part.text
        end
    end
    return table.concat(texts, "\\n")
end

-- The entries before the first that is the model's.
local function beginning_of(entries)
    local texts, asks = {}, { system = true, developer = true, user = true }
    for _, entry in ipairs(entries) do
        if type(entry) ~= "table" or not asks[entry.role] then
            break
        end
        texts[#texts + 1] = text_of(entry.content)
    end
    return table.concat(texts, "\n")
end

-- The first line of the system text of Claude Code differs in each request; quern drops it as well.
local function system_of(body)
    local text = text_of(body.system or body.instructions) .. "\\n"
    return (text:gsub("^x%-anthropic%-billing%-header:.-\\n", ""))
end

-- Sets txn.conversation, unless the body has no such text. Round robin chooses the replica then.
core.register_action("quern_conversation", { "http-req" }, function(txn)
    local found = {}
    pcall(read, txn.f:req_body(), 1, found, "body", 0)
    local body = type(found.body) == "table" and found.body or {}
    local asked = body.messages or body.input or body.prompt
    local text = type(asked) == "table" and beginning_of(asked) or asked
    if type(text) == "string" and text ~= "" then
        txn:set_var("txn.conversation", txn.c:xxh64(system_of(body) .. "\n" .. text))
    end
end)
