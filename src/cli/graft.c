/* quern graft: joins the MTP block of another file to a model. */
#include "base/file.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/signals.h"

int qn_cli_graft(qn_args *args)
{
    const char *model = args->operands[0], *head = args->operands[1], *out = args->operands[2];
    if (!qn_may_replace_model(out))
        return QN_EXIT_FAILED;
    int resolved = qn_resolve_model(&model, false);
    if (resolved == QN_EXIT_DONE)
        resolved = qn_resolve_model(&head, false);
    if (resolved != QN_EXIT_DONE)
        return resolved;
    qn_signals_disable_force_quit(); /* the temporary file must be removed; the work checks for a stop often enough */
    qn_progress progress;
    qn_progress_begin(&progress, "grafting");
    const qn_graft_params params = {
        .size = sizeof(qn_graft_params),
        .n_threads = (int)args->threads,
        .on_progress = qn_progress_update,
        .on_log = qn_progress_log,
        .user = &progress,
    };
    const qn_status status = qn_graft_mtp(model, head, out, args->type, &params);
    qn_progress_end(&progress);
    if (status)
        return qn_cli_fail();
    qn_file_info after;
    if (qn_file_describe(out, &after)) {
        char size[32];
        printf("%s, %s\n", out, qn_print_size(size, after.size));
    }
    return qn_out_finish(QN_EXIT_DONE);
}
