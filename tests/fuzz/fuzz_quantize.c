/* Conversion of hostile files to other types: a file with a tensor of each type is edited (gguf_edits.h) and converted
 * to each writable type. A resulting file is sound, has the source's tensors, and converts again; a refusal leaves no
 * file.
 *
 * An input is: a byte that selects the type, edits. */
#include "gguf_edits.h"

#include "quern/quern.h"

#include <sys/stat.h>

enum { N_WEIGHTS = 512, N_ROWS = 2 };

static struct {
    uint8_t *data;
    size_t size;
} base;

static struct edited_file *edited;
static char *folder, *out, *again;

static void remove_all(void)
{
    unlink(out);
    unlink(again);
    rmdir(folder);
}

static void add_tensor(qn_gguf_writer *w, const char *name, const qn_type_info *type, uint32_t n_dims)
{
    const uint64_t dims[] = { n_dims == 1 ? N_WEIGHTS : N_WEIGHTS / N_ROWS, N_ROWS };
    size_t bytes;
    require(qn_row_bytes(type, N_WEIGHTS, &bytes), "blocks are full");
    require(qn_gguf_writer_add_tensor(w, (qn_string){ name, strlen(name) }, (uint32_t)type->type, n_dims, dims,
                                      bytes) == QN_OK,
            "a tensor is added");
}

static void add_data(qn_gguf_writer *w, const qn_type_info *type)
{
    static uint8_t blocks[N_WEIGHTS * sizeof(float)];
    float weights[N_WEIGHTS];
    size_t bytes;
    for (size_t i = 0; i < N_WEIGHTS; i++)
        weights[i] = (float)((int)(i * 2654435761u % 2001) - 1000) / 500;
    memset(blocks, 0, sizeof blocks);
    if (type->from_float)
        type->from_float(weights, N_WEIGHTS / type->block_weights, blocks);
    require(qn_row_bytes(type, N_WEIGHTS, &bytes) && qn_gguf_writer_data(w, blocks, bytes) == QN_OK,
            "its data are written");
}

/* Makes a file with keys of several types and a tensor of each type. */
static void make_base(const char *path)
{
    size_t n;
    const qn_type_info *types = qn_types(&n);
    const qn_string texts[] = { { "a", 1 }, { "bc", 2 } };
    qn_gguf_writer *w;
    require(qn_gguf_writer_create(path, &w) == QN_OK &&
                !qn_gguf_writer_add_string(w, "general.architecture", "llama") &&
                !qn_gguf_writer_add_u32(w, "general.file_type", 1) &&
                !qn_gguf_writer_add_bool(w, "llama.attention.causal", true) &&
                !qn_gguf_writer_add_f32(w, "llama.rope.freq_base", 1e4f) &&
                !qn_gguf_writer_add_strings(w, "tokenizer.ggml.tokens", texts, 2) &&
                !qn_gguf_writer_add_i32s(w, "tokenizer.ggml.token_type", (int32_t[]){ 1, 3 }, 2),
            "keys are written");
    for (size_t pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < n; i++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%zu.attn_q.weight", i);
            if (!qn_type_find_stored((uint32_t)types[i].type) || types[i].type == QN_TYPE_NVFP4) /* refused */
                continue;
            if (pass)
                add_data(w, &types[i]);
            else
                add_tensor(w, name, &types[i], 2);
        }
        if (pass) {
            add_data(w, qn_type_find(QN_TYPE_F32));
            add_data(w, qn_type_find(QN_TYPE_F16));
        } else {
            add_tensor(w, "output_norm.weight", qn_type_find(QN_TYPE_F32), 1);
            add_tensor(w, "blk.0.ssm_conv1d.weight", qn_type_find(QN_TYPE_F16), 2);
            require(qn_gguf_writer_begin_data(w) == QN_OK, "the header is written");
        }
    }
    require(qn_gguf_writer_finish(w) == QN_OK, "the file is written");
    qn_gguf_writer_free(w);
}

static void set_up(void)
{
    edited = calloc(1, sizeof *edited);
    folder = memory_folder("quantize"); /* in memory: a conversion ends with fsync */
    require(edited && asprintf(&out, "%s/out.gguf", folder) > 0 && asprintf(&again, "%s/again.gguf", folder) > 0,
            "memory");
    require(!atexit(remove_all), "memory");
    make_base(out);
    FILE *file = fopen(out, "rb");
    base.data = malloc(1 << 20);
    require(file && base.data && (base.size = fread(base.data, 1, 1 << 20, file)) > 0, "it is read");
    unlink(out);
    fclose(file);
}

/* The name of a writable type, or f32, which is not. */
static const char *take_target(uint8_t choice)
{
    size_t n, at = choice;
    const qn_type_info *types = qn_types(&n);
    for (size_t i = 0; i < n; i++, at++)
        if (types[at % n].from_float)
            return types[at % n].name;
    return "f16";
}

static void check(const char *path, const qn_gguf *source)
{
    qn_gguf *file;
    require(qn_gguf_open(path, &file) == QN_OK, "what was written is sound");
    require(qn_gguf_n_tensors(file) == qn_gguf_n_tensors(source), "it has all tensors");
    for (size_t i = 0; i < qn_gguf_n_tensors(file); i++) {
        const qn_gguf_tensor *a = qn_gguf_tensor_at(source, i), *b = qn_gguf_tensor_at(file, i);
        require(a->name.length == b->name.length && !memcmp(a->name.data, b->name.data, a->name.length), "names stay");
        require(!memcmp(a->dims, b->dims, sizeof a->dims), "so do dimensions");
        const qn_type_info *type = qn_type_find(b->type);
        const size_t blocks = b->bytes / type->block_bytes;
        require(type->find_nonfinite(b->data, blocks) == blocks, "weights are finite");
    }
    qn_gguf_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const qn_quantize_params params = { .size = sizeof(qn_quantize_params), .n_threads = 1, .force = true };
    struct input in = { data, size };
    char path[64];
    qn_gguf *source;
    if (!edited)
        set_up();
    const uint8_t choice = take_byte(&in);
    edited_read(edited, base.data, base.size);
    edited_apply(edited, &in);
    const int fd = memory_file(edited->file.data, edited->file.n, path);
    if (qn_quantize_file(path, out, take_target(choice), &params) == QN_OK) {
        require(qn_gguf_open(path, &source) == QN_OK, "the source is sound");
        check(out, source);
        if (qn_quantize_file(out, again, take_target((uint8_t)(choice + 1 + choice / 16)), &params) == QN_OK)
            check(again, source);
        qn_gguf_close(source);
    } else {
        require(*qn_error_text() && access(out, F_OK) != 0, "a refusal has a text, and leaves no file");
    }
    unlink(out);
    unlink(again);
    close(fd);
    return 0;
}
