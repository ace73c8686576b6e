/* Parts as text. Types are those of OpenAI's chats and Responses and of Anthropic's Messages. */
#include "protocol/parts.h"

static void add_string(const json_t *string, qn_bytes *text)
{
    if (!json_string_length(string))
        return;
    if (text->length)
        qn_bytes_add(text, "\n", 1);
    qn_bytes_add(text, json_string_value(string), json_string_length(string));
}

static void add_blocks(const json_t *blocks, qn_bytes *text)
{
    for (size_t i = 0; i < json_array_size(blocks); i++)
        add_string(json_object_get(json_array_get(blocks, i), "text"), text);
}

/* Appends the text of {"type": "document", "source": {"type": "text", "data": ...} or {"type": "content", "content":
 * ...}}. */
static bool add_document(const json_t *document, qn_bytes *text)
{
    const json_t *source = json_object_get(document, "source"), *type = json_object_get(source, "type"),
                 *data = json_object_get(source, "data"), *content = json_object_get(source, "content");
    const bool is_text = qn_json_is(type, "text") && json_is_string(data),
               is_content = qn_json_is(type, "content") && (json_is_string(content) || json_is_array(content));
    if (!is_text && !is_content)
        return false;
    add_string(json_object_get(document, "title"), text);
    add_string(json_object_get(document, "context"), text);
    add_string(is_text ? data : content, text);
    add_blocks(content, text);
    return true;
}

/* Appends the text of {"type": "search_result", "source": ..., "title": ..., "content": [...]}. */
static bool add_search_result(const json_t *result, qn_bytes *text)
{
    if (!json_is_array(json_object_get(result, "content")))
        return false;
    add_string(json_object_get(result, "title"), text);
    add_string(json_object_get(result, "source"), text);
    add_blocks(json_object_get(result, "content"), text);
    return true;
}

static bool add_omitted(const json_t *type, qn_bytes *text)
{
    static const char vision[] = "[image omitted: this model has no vision]",
                      hearing[] = "[audio omitted: this model reads only text]",
                      film[] = "[video omitted: this model has no vision]",
                      file[] = "[document omitted: it is not plain text]";
    static const struct {
        const char *type, *line;
    } lines[] = { { "image", vision },        { "image_url", vision }, { "input_image", vision }, { "audio", hearing },
                  { "input_audio", hearing }, { "video", film },       { "video_url", film },     { "document", file },
                  { "file", file },           { "input_file", file } };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (qn_json_is(type, lines[i].type)) {
            qn_bytes_print(text, "%s", lines[i].line);
            return true;
        }
    return false;
}

bool qn_part_text(const json_t *part, bool in_result, qn_reading *reading, qn_bytes *text)
{
    const json_t *type = json_object_get(part, "type");
    if ((qn_json_is(type, "document") && add_document(part, text)) ||
        (qn_json_is(type, "search_result") && add_search_result(part, text)))
        return true;
    if (!in_result || !add_omitted(type, text))
        return false;
    reading->n_omitted++;
    return true;
}
