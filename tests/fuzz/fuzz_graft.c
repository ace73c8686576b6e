/* Grafting of MTP blocks: one of the inputs is hostile, the others are sound. A joined file is a model with a block,
 * whose other tensors are those of the model; a refusal has a text and leaves no file.
 *
 * The first byte of an input selects what the rest stands for:
 *
 *   0, 1   a byte for the type, edits (gguf_edits.h) of the model without its block (0), of the model with it, the head
 * (1) 2      config.json of a checkpoint with the block 3      its safetensors file: two bytes for the size of the
 * data, which are zeros, and the header 4      its model.safetensors.index.json
 *
 * The checkpoint is the one of the inputs `config` and `header` of the corpus. tools/fuzz_corpus_edits.py and
 * fuzz_corpus_convert.py make the first inputs. */
#include "gguf_edits.h"

#include "model/model.h"
#include "model/weights.h"
#include "quern/quern.h"

#include <sys/stat.h>

enum { N_LAYERS = 3, MAX_FILE = 1 << 20 };

static struct blob whole, bare, config, header; /* files: with the block, without it, config.json, the input of a header
                                                 */
static struct edited_file *edited;
static char *folder, *out, *model_path, *head_path;

static const char *path_of(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, const void *data, size_t size)
{
    FILE *file = fopen(path_of(name), "wb");
    require(file && fwrite(data, 1, size, file) == size && !fclose(file), "a file is written");
}

static void remove_all(void)
{
    static const char *const names[] = { "config.json", "b.safetensors", "model.safetensors.index.json",
                                         "model.gguf",  "head.gguf",     "out.gguf" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unlink(path_of(names[i]));
    rmdir(folder);
}

/* Writes the model without its block. */
static void write_bare(const qn_gguf *file)
{
    const uint32_t n_layers = N_LAYERS;
    qn_gguf_writer *w;
    require(qn_gguf_writer_create(model_path, &w) == QN_OK, "the model is created");
    for (size_t i = 0; i < qn_gguf_n_kv(file); i++) {
        qn_gguf_kv kv = *qn_gguf_kv_at(file, i);
        if (qn_string_equals(kv.key, "qwen35.nextn_predict_layers"))
            continue;
        if (qn_string_equals(kv.key, "qwen35.block_count"))
            kv.data = (const uint8_t *)&n_layers;
        if (qn_string_equals(kv.key, "qwen35.attention.recurrent_layers")) {
            kv.bytes = kv.bytes / (size_t)kv.count * N_LAYERS;
            kv.count = N_LAYERS;
        }
        require(qn_gguf_writer_copy(w, &kv) == QN_OK, "a key is copied");
    }
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < qn_gguf_n_tensors(file); i++) {
            const qn_gguf_tensor *t = qn_gguf_tensor_at(file, i);
            if (qn_weights_block(t->name) != N_LAYERS)
                require(QN_OK == (pass ? qn_gguf_writer_data(w, t->data, t->bytes)
                                       : qn_gguf_writer_add_tensor(w, t->name, t->type, t->n_dims, t->dims, t->bytes)),
                        "a tensor is copied");
        }
        require(QN_OK == (pass ? qn_gguf_writer_finish(w) : qn_gguf_writer_begin_data(w)), "the model is written");
    }
    qn_gguf_writer_free(w);
}

static void load(struct blob *blob, const char *path)
{
    FILE *file = fopen(path, "rb");
    blob->data = malloc(MAX_FILE);
    require(file && blob->data && (blob->n = fread(blob->data, 1, MAX_FILE, file)) > 0, "the file is read");
    fclose(file);
}

/* Writes a safetensors file of an input's header. */
static void write_tensors(const uint8_t *data, size_t size)
{
    struct input in = { data, size };
    const size_t zeros = (size_t)take_number(&in, 2);
    const uint64_t length = in.left;
    static struct blob file;
    file.n = 0;
    blob_add(&file, &length, sizeof length);
    blob_add(&file, in.at, in.left);
    void *rest = calloc(1, zeros + 1);
    require(rest, "memory");
    blob_add(&file, rest, zeros);
    free(rest);
    write_file("b.safetensors", file.data, file.n);
}

static qn_status graft(const char *model, const char *head, const char *type)
{
    const qn_graft_params params = { .size = sizeof(qn_graft_params), .n_threads = 1 };
    return qn_graft_mtp(model, head, out, type, &params);
}

static void set_up(void)
{
    char path[4096];
    qn_gguf *file;
    edited = calloc(1, sizeof *edited);
    folder = memory_folder("graft"); /* in memory: a graft ends with fsync */
    require(edited && asprintf(&out, "%s/out.gguf", folder) > 0 && asprintf(&model_path, "%s/model.gguf", folder) > 0 &&
                asprintf(&head_path, "%s/head.gguf", folder) > 0 && !atexit(remove_all),
            "memory");
    load(&whole, source_path("tests/golden/qwen35-mtp.bf16.gguf", path));
    require(qn_gguf_open(path, &file) == QN_OK, "the model is sound");
    write_bare(file);
    qn_gguf_close(file);
    load(&bare, model_path);
    write_file("head.gguf", whole.data, whole.n);
    load(&config, source_path("tests/fuzz/corpus/graft/config", path));
    load(&header, source_path("tests/fuzz/corpus/graft/header", path));
    write_file("config.json", config.data + 1, config.n - 1);
    write_tensors(header.data + 1, header.n - 1);
    require(graft(model_path, head_path, NULL) == QN_OK, "the block is joined again");
    require(graft(model_path, path_of("b.safetensors"), NULL) == QN_OK, "so is that of the checkpoint");
    unlink(out);
}

/* What was written is a model with a block, and has what the model has. */
static void check(const char *model)
{
    qn_gguf *a, *b;
    qn_hparams h;
    qn_plan plan;
    require(qn_gguf_open(model, &a) == QN_OK && qn_gguf_open(out, &b) == QN_OK, "what was written is sound");
    require(qn_model_build(b, &h, &plan) == QN_OK && h.n_blocks == h.n_layers + 1, "it is a model with a block");
    qn_plan_free(&plan);
    const size_t n = qn_gguf_n_tensors(a);
    require(qn_gguf_n_tensors(b) >= n + 14 && qn_gguf_n_tensors(b) <= n + 17, "the block is whole");
    require(qn_gguf_n_kv(b) >= qn_gguf_n_kv(a), "keys are there");
    for (size_t i = 0; i < n; i++) {
        const qn_gguf_tensor *t = qn_gguf_tensor_at(a, i), *u = qn_gguf_tensor_at(b, i);
        require(t->bytes == u->bytes && t->type == u->type && !memcmp(t->data, u->data, t->bytes), "tensors stay");
    }
    qn_gguf_close(a);
    qn_gguf_close(b);
}

static void try(const char *model, const char *head, const char *type)
{
    if (graft(model, head, type) == QN_OK)
        check(model);
    else
        require(*qn_error_text() && access(out, F_OK) != 0, "a refusal has a text, and leaves no file");
    unlink(out);
}

static void try_edits(struct input *in, bool head)
{
    static const char *const types[] = { NULL, "keep", "q4_0", "f32" };
    char path[64];
    const char *type = types[take_byte(in) % 4];
    edited_read(edited, head ? whole.data : bare.data, head ? whole.n : bare.n);
    edited_apply(edited, in);
    const int fd = memory_file(edited->file.data, edited->file.n, path);
    if (head)
        try(model_path, path, type);
    else
        try(path, head_path, type);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, size };
    if (!edited)
        set_up();
    const uint8_t which = take_byte(&in);
    switch (which) {
    case 0:
    case 1: try_edits(&in, which); break;
    case 2:
        write_file("config.json", in.at, in.left);
        try(model_path, path_of("b.safetensors"), NULL);
        write_file("config.json", config.data + 1, config.n - 1);
        break;
    case 3:
        write_tensors(in.at, in.left);
        try(model_path, path_of("b.safetensors"), "keep");
        write_tensors(header.data + 1, header.n - 1);
        break;
    case 4:
        write_file("model.safetensors.index.json", in.at, in.left);
        try(model_path, folder, NULL);
        unlink(path_of("model.safetensors.index.json"));
        break;
    default: break;
    }
    return 0;
}
