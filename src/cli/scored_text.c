/* The text that quern perplexity scores. */
#include "cli/perplexity.h"

#include <stdlib.h>

int qn_read_scored_text(const qn_args *args, qn_model *model, qn_scored_text *text)
{
    char *bytes;
    size_t length;
    const bool from_stdin = args->file[0] == '-' && !args->file[1];
    *text = (qn_scored_text){ 0 };
    if (!qn_read_all(from_stdin ? NULL : args->file, args->limit_bytes ? (uint64_t)args->limit_bytes : UINT64_MAX,
                     &bytes, &length))
        return QN_EXIT_FAILED;
    const int status = qn_tokenize(model, "", 0, false, true, &text->begin, &text->n_begin) ||
                               qn_tokenize(model, bytes, length, false, true, &text->tokens, &text->count)
                           ? qn_cli_fail()
                           : QN_EXIT_DONE;
    free(bytes);
    if (status == QN_EXIT_DONE && text->count < (size_t)args->context) {
        qn_cli_error("%s: %zu tokens are fewer than one piece of %zu (-c)", args->file, text->count,
                     (size_t)args->context);
        return QN_EXIT_FAILED;
    }
    return status;
}
