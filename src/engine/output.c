/* Parameters for parsing a model's answers, from its chat template and the end of the prompt. */
#include "engine/events.h"

#include "base/memory.h"
#include "text/json_scan.h"

#include <stdlib.h>
#include <string.h>

bool qn_model_output(const qn_model *model, qn_output_params *output)
{
    if (model->chat)
        return qn_chat_template_output(model->chat, output);
    qn_output_params_init(output, QN_OUTPUT_PLAIN);
    output->think_open.text = output->think_close.text = NULL;
    return true;
}

qn_status qn_model_calls(const qn_model *model, qn_output_params *output)
{
    if (!qn_model_output(model, output))
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "tools: the model's chat template has tools, but its calls cannot be parsed back");
    return output->form != QN_OUTPUT_PLAIN ? QN_OK
                                           : qn_fail(QN_ERR_UNSUPPORTED, "tools: the model's chat template has none");
}

/* ---- How an answer is parsed ---- */

/* The text of the last tokens of a prompt; free() it. */
static qn_status prompt_tail(const qn_tokenizer *tok, const qn_token *prompt, size_t n, char **text, size_t *length)
{
    size_t capacity = 0;
    *text = NULL;
    *length = 0;
    for (size_t i = n < QN_PROMPT_TAIL ? 0 : n - QN_PROMPT_TAIL; i < n; i++) {
        const char *bytes;
        size_t n_bytes;
        if (prompt[i] < 0 || (size_t)prompt[i] >= qn_tokenizer_n_vocab(tok))
            continue;
        qn_status status = qn_tokenizer_piece(tok, prompt[i], &bytes, &n_bytes);
        if (status == QN_OK)
            status = qn_realloc_array(text, &capacity, *length + n_bytes + 1, 1, "prompt");
        if (status != QN_OK) {
            free(*text);
            *text = NULL;
            return status;
        }
        memcpy(*text + *length, bytes, n_bytes);
        *length += n_bytes;
    }
    return QN_OK;
}

static bool ends_with_token(const qn_tokenizer *tok, const qn_token *prompt, size_t n, qn_token token)
{
    const size_t end = n < QN_PROMPT_TAIL ? 0 : n - QN_PROMPT_TAIL;
    const char *bytes;
    size_t n_bytes = 0;
    for (size_t i = n; i-- > end;) {
        if (prompt[i] == token)
            return true;
        if (qn_tokenizer_piece(tok, prompt[i], &bytes, &n_bytes) != QN_OK)
            return false;
        for (size_t b = 0; b < n_bytes; b++)
            if (!qn_json_is_space(bytes[b]))
                return false;
    }
    return false;
}

qn_status qn_prompt_ends_with(const qn_tokenizer *tok, const qn_token *prompt, size_t n,
                              const qn_output_delimiter *delimiter, bool *ends)
{
    char *text;
    size_t length;
    *ends = delimiter->text && delimiter->token >= 0 && ends_with_token(tok, prompt, n, delimiter->token);
    if (!delimiter->text || delimiter->token >= 0)
        return QN_OK;
    QN_TRY(prompt_tail(tok, prompt, n, &text, &length));
    *ends = qn_output_ends_with(delimiter->text, text ? text : "", length);
    free(text);
    return QN_OK;
}

/* Sets the format of calls. Without tools the text of a call is content. That a template's calls cannot be parsed
 * matters only with tools: qn_model_calls then says so. The caller frees *kept, also after an error. */
static qn_status find_form(const qn_model *model, const json_t *tools, qn_output_params *output, qn_output_tools **kept)
{
    (void)qn_model_output(model, output);
    if (tools && !json_is_null(tools) && !json_is_array(tools))
        return qn_fail(QN_ERR_INVALID, "tools: they are not an array");
    if (!json_array_size(tools)) {
        output->form = QN_OUTPUT_PLAIN;
        return QN_OK;
    }
    QN_TRY(qn_model_calls(model, output));
    return qn_output_tools_create(tools, output->form, kept);
}

qn_status qn_answer_output(const qn_model *model, const json_t *tools, const qn_token *prompt, size_t n,
                           qn_output_params *output, qn_output_tools **kept)
{
    *kept = NULL;
    QN_TRY(find_form(model, tools, output, kept));
    output->tools = *kept;
    return qn_prompt_ends_with(model->tokenizer, prompt, n, &output->think_open, &output->starts_in_reasoning);
}
