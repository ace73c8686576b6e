/* The options of drafts, and what is printed about them. */
#include "cli/draft.h"

#include "cli/cli.h"
#include "engine/spec/drafter.h"

#include <string.h>

qn_draft_kind qn_find_draft(const qn_args *args)
{
    int kind = QN_DRAFT_AUTO;
    while (args->draft && qn_draft_names[kind] && strcmp(qn_draft_names[kind], args->draft) != 0)
        kind++;
    return (qn_draft_kind)kind;
}

int qn_check_draft(const qn_args *args)
{
    const qn_draft_kind kind = qn_find_draft(args);
    if ((kind == QN_DRAFT_MODEL || kind == QN_DRAFT_DFLASH) && !args->draft_model)
        qn_cli_error("--draft: %s needs --draft-model FILE", args->draft);
    else if (args->draft_model && (kind == QN_DRAFT_OFF || kind == QN_DRAFT_NGRAM))
        qn_cli_error("--draft-model: it is not used with --draft %s; --draft mtp, model, dflash or auto use it",
                     args->draft);
    else if (args->draft_model && (args->models_dir || args->models.count > 1))
        qn_cli_error("--draft-model: serves one model, but there are several");
    else
        return QN_EXIT_DONE;
    return QN_EXIT_USAGE;
}

double qn_tokens_per_step(size_t n_generated, size_t n_accepted)
{
    return n_generated > n_accepted ? (double)n_generated / (double)(n_generated - n_accepted) : 1;
}

const char *qn_draft_text(size_t n_generated, size_t n_jumped, size_t n_drafted, size_t n_accepted, char *buffer)
{
    *buffer = 0;
    if (n_drafted)
        snprintf(buffer, QN_DRAFT_TEXT, ", %.2f tokens/step (%zu of %zu drafted)",
                 qn_tokens_per_step(n_generated, n_jumped + n_accepted), n_accepted, n_drafted);
    return buffer;
}
