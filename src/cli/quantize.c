/* quern quantize: the same model in another weight type. */
#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/signals.h"

#include "gguf/gguf.h"
#include "quant/quant.h"

#include <string.h>
#include <sys/stat.h>

static const char purpose[] =
    "Rewrites a GGUF file with its matrices in TYPE: f16 bf16 q8_0 q4_0 q4_1 q1_0 q2_0 pq2_0 ptq1_0 "
    "tq1_0 tq2_0. Tensors of one\n"
    "dimension stay f32, and a matrix whose rows do not fit the type's block keeps a wider type: a "
    "note names it. The new file\n"
    "appears whole or not at all. Of a model split over several files, IN is any of them, and OUT is one file.";

/* The type as the library spells it; NULL, with an error line, for one that cannot be written. */
static const char *writable_type(const char *name)
{
    const qn_type_info *info = qn_type_find_name(name);
    if (info && info->encode && info->type != QN_TYPE_F32)
        return info->name;
    qn_cli_error(info ? "%s: quern cannot write this type (see quern quantize --help)"
                      : "'%s' is not a weight type (see quern quantize --help)",
                 name);
    return NULL;
}

int qn_cli_quantize(int argc, char **argv)
{
    int64_t threads = 0;
    const char *operands[3] = { NULL };
    const qn_option options[] = {
        QN_OPT_INT("-t", "--threads", &threads, "N", 1, 1024, "threads (default: physical cores)"),
    };
    const qn_command_line line = {
        .usage = "quantize IN OUT TYPE [-t N]",
        .purpose = purpose,
        .options = options,
        .n_options = sizeof options / sizeof *options,
        .operands = operands,
        .min_operands = 3,
        .max_operands = 3,
    };
    const qn_args_result parsed = qn_args_parse(&line, argc, argv);
    if (parsed != QN_ARGS_OK)
        return qn_args_exit(parsed);
    const char *in = operands[0], *out = operands[1], *type = writable_type(operands[2]);
    if (!type)
        return QN_EXIT_USAGE;
    struct stat after;
    if (stat(out, &after) == 0 && !S_ISREG(after.st_mode)) {
        qn_cli_error("%s: exists and is not a regular file", out);
        return QN_EXIT_FAILED;
    }
    qn_gguf *source;
    if (qn_gguf_open(in, &source))
        return qn_cli_fail();
    const size_t size_before = qn_gguf_file_size(source); /* taken now: out may be one of its files */
    qn_gguf_close(source);
    qn_signals_patient(); /* the temporary file must go, whatever happens; the work asks often enough */
    qn_progress progress;
    qn_progress_begin(&progress, "quantizing");
    const qn_quantize_params params = {
        .n_threads = (int)threads,
        .on_progress = qn_progress_update,
        .on_log = qn_progress_log,
        .user = &progress,
    };
    const qn_status status = qn_quantize_file(in, out, type, &params);
    qn_progress_end(&progress);
    if (status)
        return qn_cli_fail();
    if (stat(out, &after) == 0) {
        char size_in[32], size_out[32];
        printf("%s, %s to %s\n", type, qn_print_size(size_in, size_before), qn_print_size(size_out, (uint64_t)after.st_size));
    }
    return QN_EXIT_DONE;
}
