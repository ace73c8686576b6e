/* quern info: the contents of a GGUF file, from its structure; only the tokeniser is loaded, to check that it works. */
#include "cli/cli.h"
#include "cli/effort.h"
#include "cli/info_memory.h"
#include "cli/info_plan.h"

#include "gguf/gguf.h"
#include "model/hadamard.h"
#include "model/kv_bias.h"
#include "model/model.h"
#include "plan/limits.h"
#include "quant/quant.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Enough to recognise a value; a whole chat template or vocabulary would hide the rest. */
enum { SHOWN_BYTES = 120, SHOWN_ELEMENTS = 6 };

static void print_line(const char *text)
{
    qn_print_escaped(stdout, text, strlen(text));
}

static void print_string(qn_string s)
{
    putchar('"');
    qn_print_escaped(stdout, s.data, s.length < SHOWN_BYTES ? s.length : SHOWN_BYTES);
    putchar('"');
    if (s.length > SHOWN_BYTES)
        printf(" ... (%zu bytes)", s.length);
}

static size_t scalar_size(qn_gguf_type type)
{
    switch (type) {
    case QN_GGUF_U8:
    case QN_GGUF_I8:
    case QN_GGUF_BOOL: return 1;
    case QN_GGUF_U16:
    case QN_GGUF_I16: return 2;
    case QN_GGUF_U32:
    case QN_GGUF_I32:
    case QN_GGUF_F32: return 4;
    case QN_GGUF_U64:
    case QN_GGUF_I64:
    case QN_GGUF_F64: return 8;
    case QN_GGUF_STRING:
    case QN_GGUF_ARRAY: return 0;
    }
    return 0;
}

/* Prints a value of a key. Values are unaligned in the file and little-endian, as quern's machines are. */
static void print_scalar(qn_gguf_type type, const uint8_t *data)
{
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
        float f32;
        double f64;
    } v = { 0 };
    memcpy(&v, data, scalar_size(type));
    switch (type) {
    case QN_GGUF_U8: printf("%u", v.u8); break;
    case QN_GGUF_I8: printf("%d", v.i8); break;
    case QN_GGUF_U16: printf("%u", v.u16); break;
    case QN_GGUF_I16: printf("%d", v.i16); break;
    case QN_GGUF_U32: printf("%" PRIu32, v.u32); break;
    case QN_GGUF_I32: printf("%" PRId32, v.i32); break;
    case QN_GGUF_U64: printf("%" PRIu64, v.u64); break;
    case QN_GGUF_I64: printf("%" PRId64, v.i64); break;
    case QN_GGUF_F32: printf("%.9g", (double)v.f32); break;
    case QN_GGUF_F64: printf("%.17g", v.f64); break;
    case QN_GGUF_BOOL: fputs(v.u8 ? "true" : "false", stdout); break;
    case QN_GGUF_STRING:
    case QN_GGUF_ARRAY: break;
    }
}

static bool print_array(const qn_gguf *file, const qn_gguf_kv *kv)
{
    const uint64_t shown = kv->count < SHOWN_ELEMENTS ? kv->count : SHOWN_ELEMENTS;
    qn_string *strings = NULL;
    if (kv->element_type == QN_GGUF_STRING && qn_gguf_array_strings(file, kv, &strings)) {
        qn_cli_fail();
        return false;
    }
    putchar('[');
    for (uint64_t i = 0; i < shown; i++) {
        if (i)
            fputs(", ", stdout);
        if (strings)
            print_string(strings[i]);
        else
            print_scalar(kv->element_type, kv->data + i * scalar_size(kv->element_type));
    }
    if (kv->count > shown)
        printf(", ... (%" PRIu64 ")", kv->count);
    putchar(']');
    free(strings);
    return true;
}

static bool print_metadata(const qn_gguf *file)
{
    printf("\nmetadata (%zu)\n", qn_gguf_n_kv(file));
    for (size_t i = 0; i < qn_gguf_n_kv(file); i++) {
        const qn_gguf_kv *kv = qn_gguf_kv_at(file, i);
        fputs("  ", stdout);
        qn_print_escaped(stdout, kv->key.data, kv->key.length);
        fputs(" = ", stdout);
        if (kv->type == QN_GGUF_STRING)
            print_string(kv->string);
        else if (kv->type != QN_GGUF_ARRAY)
            print_scalar(kv->type, kv->data);
        else if (!print_array(file, kv))
            return false;
        putchar('\n');
    }
    return true;
}

static uint64_t n_weights(const qn_gguf_tensor *tensor)
{
    uint64_t n = 1;
    for (uint32_t d = 0; d < tensor->n_dims; d++)
        n *= tensor->dims[d]; /* the reader has checked for overflow */
    return n;
}

static const char *type_name(uint32_t type)
{
    const qn_type_info *info = qn_type_find(type);
    return info ? info->name : "?";
}

static void print_tensors(const qn_gguf *file)
{
    printf("\ntensors (%zu)\n", qn_gguf_n_tensors(file));
    for (size_t i = 0; i < qn_gguf_n_tensors(file); i++) {
        const qn_gguf_tensor *tensor = qn_gguf_tensor_at(file, i);
        printf("  %-7s [", type_name(tensor->type));
        for (uint32_t d = 0; d < tensor->n_dims; d++)
            printf("%s%" PRIu64, d ? ", " : "", tensor->dims[d]);
        fputs("]  ", stdout);
        qn_print_escaped(stdout, tensor->name.data, tensor->name.length);
        putchar('\n');
    }
}

static void print_totals(const qn_gguf *file)
{
    size_t n_types;
    const qn_type_info *types = qn_types(&n_types);
    char size[32];
    printf("\ntotals by type\n");
    for (size_t t = 0; t < n_types; t++) {
        uint64_t tensors = 0, weights = 0, bytes = 0;
        for (size_t i = 0; i < qn_gguf_n_tensors(file); i++) {
            const qn_gguf_tensor *tensor = qn_gguf_tensor_at(file, i);
            if (tensor->type != (uint32_t)types[t].type)
                continue;
            tensors++;
            weights += n_weights(tensor);
            bytes += tensor->bytes;
        }
        if (tensors)
            printf("  %-7s %6" PRIu64 " tensors %14" PRIu64 " weights %12s  %.3f bits a weight\n", types[t].name,
                   tensors, weights, qn_print_size(size, bytes), (double)bytes * 8 / (double)weights);
    }
}

static const char *call_form(const char *name)
{
    static const struct {
        const char *name, *form;
    } forms[] = {
        { "", "none: the template has no tools" },
        { "unknown", "in a form that quern does not parse: tools are refused" },
        { "json", "json: <tool_call>{\"name\": ..., \"arguments\": {...}}</tool_call>" },
        { "xml", "xml: <tool_call><function=...><parameter=...>" },
        { "llama3", "llama3: {\"name\": ..., \"parameters\": {...}}" },
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (strcmp(forms[i].name, name) == 0)
            return forms[i].form;
    return name;
}

static void print_chat_format(const qn_model *model)
{
    const qn_chat_format format = *qn_model_get_chat_format(model);
    if (!*format.source) {
        fputs("chat        not usable: the model has ", stdout);
        print_line(format.problem);
        putchar('\n');
        return;
    }
    printf("chat        %s\ntool calls  %s\n",
           strcmp(format.source, "file") == 0 ? "the file's template" : "ChatML, as the file has no template",
           call_form(format.tool_calls));
    if (!*format.think_open)
        fputs("thinking    none", stdout);
    else {
        fputs("thinking    ", stdout);
        print_line(format.think_open);
        fputs(" and ", stdout);
        print_line(format.think_close);
    }
    puts(format.has_enable_thinking ? ", switched by enable_thinking" : "");
    if (!format.has_reasoning_effort)
        return;
    fputs("efforts    ", stdout);
    for (size_t i = 0; i < format.n_efforts; i++)
        printf(" %s", format.efforts[i]);
    const char *middle = qn_middle_effort(&format);
    if (middle)
        printf(", by default %s", middle);
    puts(format.n_efforts ? "" : " any: the template prints reasoning_effort");
}

/* Prints the tokens that end generation, with their ids. */
static void print_ends(const qn_model *model, uint32_t n_vocab)
{
    fputs("ends       ", stdout);
    size_t n = 0;
    for (uint32_t token = 0; token < n_vocab; token++) {
        const char *text;
        size_t length;
        if (!qn_token_is_end(model, (qn_token)token) || qn_token_piece(model, (qn_token)token, &text, &length))
            continue;
        printf("%s %" PRIu32 " ", n++ ? "," : "", token);
        print_string((qn_string){ text, length });
    }
    puts(n ? "" : " none: only a limit ends an answer");
}

static void print_tokenizer(const qn_gguf *file)
{
    const qn_gguf_kv *model = qn_gguf_find(file, "tokenizer.ggml.model");
    fputs("tokeniser   ", stdout);
    if (!model) {
        puts("none");
        return;
    }
    const qn_model_params params = { .size = sizeof(qn_model_params), .vocab_only = true };
    qn_model *loaded;
    if (qn_model_load(qn_gguf_path(file), &params, &loaded)) {
        fputs("not usable: ", stdout);
        print_line(qn_error_text());
        putchar('\n');
        return;
    }
    const qn_model_info info = *qn_model_get_info(loaded);
    printf("%s, %" PRIu32 " tokens\n", info.tokeniser, info.n_vocab);
    print_ends(loaded, info.n_vocab);
    print_chat_format(loaded);
    qn_model_free(loaded);
}

static void print_rotation(const qn_gguf *file)
{
    qn_rotation rotation;
    const qn_status status = qn_rotation_read(file, &rotation);
    if (status == QN_OK && !rotation.block)
        return;
    fputs("rotation    ", stdout);
    if (status) {
        fputs("not usable: ", stdout);
        print_line(qn_error_text());
        putchar('\n');
        return;
    }
    printf("Walsh-Hadamard in blocks of %zu, %s signs: %zu matrices%s%s%s\n", rotation.block,
           rotation.signs ? "with" : "without", rotation.n_names, rotation.inverse_embedding ? ", token_embd" : "",
           rotation.tied_output ? " (also the output)" : "", rotation.gdn_v_grouped ? "; value heads grouped" : "");
    qn_rotation_free(&rotation);
}

/* Prints the labels of the head that ranks documents: a score is the first one's probability. */
static void print_labels(const qn_gguf *file, const char *architecture)
{
    char key[128];
    qn_string *labels;
    snprintf(key, sizeof key, "%s.classifier.output_labels", architecture);
    const qn_gguf_kv *kv = qn_gguf_find(file, key);
    if (!kv || qn_gguf_array_strings(file, kv, &labels) != QN_OK)
        return;
    fputs("ranking     documents, by the probability of ", stdout);
    for (uint64_t i = 0; i < kv->count; i++) {
        fputs(i == 0 ? "\"" : i == 1 ? "\" among \"" : "\", \"", stdout);
        qn_print_escaped(stdout, labels[i].data, labels[i].length);
    }
    puts("\"");
    free(labels);
}

/* Prints whether the model drafts by a block of its own, the cache format that is forced, if the model does not allow
 * any, and what needs memory; nothing for files that cannot be run. */
static void print_kv(const qn_gguf *file, const char *device)
{
    qn_hparams hparams;
    qn_plan plan;
    qn_model_head head;
    char layers[192];
    if (qn_model_build_with_head(file, &hparams, &plan, &head) != QN_OK)
        return;
    if (head.is_there)
        puts("drafts      mtp, by the file's block for multi-token prediction, on the CPU and on CUDA devices");
    if (head.is_broken) {
        fputs("drafts      without mtp: ", stdout);
        qn_print_escaped(stdout, head.why, strlen(head.why));
        putchar('\n');
    }
    qn_plan_describe_kv_bias(&plan, layers, sizeof layers);
    if (plan.rank_head.n_rows)
        print_labels(file, hparams.architecture);
    if (!qn_aura_has_dim(hparams.head_dim))
        printf("KV cache    f16 in all layers, unless --kv is f32: there are no AURA codes for heads of %u values\n",
               (unsigned)hparams.head_dim);
    else if (*layers)
        printf("KV cache    f16 in all layers, unless --kv is f32: AURA codes would be inaccurate, as %s\n", layers);
    qn_print_memory(file, &hparams, &plan, device);
    qn_plan_free(&plan);
}

/* Opens the file, or all files of a split model. If some cannot be opened, *alone is set and only this one is
 * opened. */
static qn_status open_file(const char *path, qn_gguf **file, bool *alone)
{
    const qn_status status = qn_gguf_open(path, file);
    *alone = false;
    if (status != QN_ERR_IO)
        return status;
    char reason[1024];
    snprintf(reason, sizeof reason, "%s", qn_error_text());
    QN_TRY(qn_gguf_open_alone(path, file));
    *alone = true;
    qn_cli_error("note: %s; only this file is shown", reason);
    return QN_OK;
}

static int print_file(const char *path, const char *device)
{
    qn_gguf *file;
    bool alone;
    char size[32];
    if (open_file(path, &file, &alone))
        return qn_cli_fail();
    fputs("file        ", stdout);
    print_line(qn_gguf_path(file));
    if (qn_gguf_n_files(file) > 1)
        printf(", the first of %zu", qn_gguf_n_files(file));
    printf("\nsize        %s (%zu bytes), GGUF 3, alignment %zu\n", qn_print_size(size, qn_gguf_file_size(file)),
           qn_gguf_file_size(file), qn_gguf_alignment(file));
    if (qn_gguf_q2_layout(file))
        printf("type 42     %s\n", qn_gguf_q2_layout(file));
    if (!alone) { /* these need all keys and tensors of the model */
        print_rotation(file);
        print_kv(file, device);
        print_tokenizer(file);
    }
    const bool ok = print_metadata(file);
    if (ok) {
        print_tensors(file);
        print_totals(file);
    }
    qn_gguf_close(file);
    return ok ? QN_EXIT_DONE : QN_EXIT_FAILED;
}

int qn_cli_info(qn_args *args)
{
    const char *path = args->model ? args->model : args->n_operands ? args->operands[0] : NULL;
    if (!path) {
        qn_cli_error("info: too few arguments: usage: quern info FILE [--plan]");
        return QN_EXIT_USAGE;
    }
    if (qn_args_no_more("info", args, args->model ? 0 : 1) != QN_ARGS_OK)
        return QN_EXIT_USAGE;
    const int status = qn_resolve_model(&path, false);
    if (status != QN_EXIT_DONE)
        return status;
    return args->plan ? qn_print_plan(path) : print_file(path, args->device);
}
