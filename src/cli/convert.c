/* quern convert: writes a GGUF file from a checkpoint of Hugging Face transformers. */
#include "base/file.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/signals.h"

#include "quant/quant.h"

int qn_cli_convert(qn_args *args)
{
    const char *folder = args->operands[0], *out = args->operands[1],
               *type = args->n_operands > 2 ? args->operands[2] : NULL;
    const qn_type_info *info;
    if (type && qn_type_find_writable(type, true, &info)) {
        qn_cli_fail();
        return QN_EXIT_USAGE;
    }
    if (!qn_may_replace_model(out))
        return QN_EXIT_FAILED;
    qn_signals_disable_force_quit(); /* the temporary file must be removed; the work checks for a stop often enough */
    qn_progress progress;
    qn_progress_begin(&progress, "converting");
    const qn_convert_params params = {
        .size = sizeof(qn_convert_params),
        .n_threads = (int)args->threads,
        .force = args->force,
        .on_progress = qn_progress_update,
        .on_log = qn_progress_log,
        .user = &progress,
    };
    const qn_status status = qn_convert_checkpoint(folder, out, type, &params);
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
