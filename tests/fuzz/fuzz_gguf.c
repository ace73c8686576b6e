/* The GGUF reader: any bytes are opened as a file. If that succeeds, everything in it is read by every function of
 * the interface, the first and last blocks of every tensor are decoded, and the keys of rotated weights are read.
 * Files that claim to be part of a split model are also opened as one, after a sound first file. */
#include "gguf/gguf.h"
#include "model/hadamard.h"
#include "quant/quant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void look_up(const qn_gguf *file, const qn_gguf_kv *kv)
{
    char key[64];
    uint32_t u;
    float f;
    bool b;
    qn_string s, *strings;
    int32_t i;
    if (kv->key.length < sizeof key) {
        memcpy(key, kv->key.data, kv->key.length);
        key[kv->key.length] = '\0';
        (void)qn_gguf_get_u32(file, key, true, &u);
        (void)qn_gguf_get_f32(file, key, true, &f);
        (void)qn_gguf_get_bool(file, key, true, &b);
        (void)qn_gguf_get_string(file, key, true, &s);
        if (strlen(key) == kv->key.length && qn_gguf_find(file, key) != kv)
            abort(); /* keys are unique: each finds itself */
    }
    const uint64_t indices[] = { 0, 1, kv->count / 2, kv->count - 1, kv->count };
    for (size_t p = 0; p < sizeof indices / sizeof indices[0]; p++) {
        (void)qn_gguf_array_i32(file, kv, indices[p], &i);
        (void)qn_gguf_array_f32(file, kv, indices[p], &f);
    }
    if (qn_gguf_array_strings(file, kv, &strings) == QN_OK) {
        unsigned sum = 0;
        for (uint64_t n = 0; n < kv->count; n++)
            for (size_t c = 0; c < strings[n].length; c++)
                sum += (unsigned char)strings[n].data[c];
        if (sum == UINT32_MAX) /* so that the reads are not optimised away */
            abort();
        free(strings);
    }
}

static void decode_some(const qn_gguf_tensor *t)
{
    const qn_type_info *info = qn_type_find(t->type);
    const size_t blocks = t->bytes / info->block_bytes;
    float weights[256], scale[8], offset[16];
    uint8_t codes[256];
    int8_t factor[16];
    if (t->bytes % info->block_bytes != 0 || blocks == 0 || info->find_nonfinite(t->data, blocks) > blocks)
        abort();
    for (size_t n = 0; n < 8 && n < blocks; n++)
        for (int end = 0; end < 2; end++) {
            const uint8_t *block = t->data + (end ? blocks - 1 - n : n) * info->block_bytes;
            info->to_float(block, 1, weights);
            if (info->unpack)
                info->unpack(block, 1, codes, scale, offset, factor);
        }
}

/* Checks that an accepted file satisfies the plan's assumptions: full blocks, signs of +-1, existing names. */
static void read_rotation(const qn_gguf *file)
{
    qn_rotation r;
    if (qn_rotation_read(file, &r) != QN_OK || r.block == 0)
        return;
    for (size_t i = 0; i < qn_gguf_n_tensors(file); i++) {
        const qn_gguf_tensor *t = qn_gguf_tensor_at(file, i);
        char name[128];
        if (t->name.length >= sizeof name)
            continue;
        memcpy(name, t->name.data, t->name.length);
        name[t->name.length] = '\0';
        if (!qn_rotation_applies(&r, name))
            continue;
        const float *signs = qn_rotation_signs(&r, (size_t)t->dims[0]);
        if (t->dims[0] % r.block != 0 || (r.signs && !signs))
            abort();
        for (uint64_t c = 0; signs && c < t->dims[0]; c++)
            if (signs[c] != 1 && signs[c] != -1)
                abort();
    }
    qn_rotation_free(&r);
}

static void look(const qn_gguf *file)
{
    for (size_t i = 0; i < qn_gguf_n_kv(file); i++)
        look_up(file, qn_gguf_kv_at(file, i));
    for (size_t i = 0; i < qn_gguf_n_tensors(file); i++)
        decode_some(qn_gguf_tensor_at(file, i));
    read_rotation(file);
}

static char folder[] = "/tmp/quern-fuzz-gguf-XXXXXX", first[64], second[64];

static void remove_folder(void)
{
    unlink(first);
    unlink(second);
    rmdir(folder);
}

/* Makes the first of two files, with one of two tensors: of type 42, so that its layout is decided for both files. */
static void make_first(void)
{
    static const uint8_t zeros[34];
    const uint64_t dims[] = { 128 };
    qn_gguf_writer *w;
    if (!mkdtemp(folder) || atexit(remove_folder))
        abort();
    snprintf(first, sizeof first, "%s/m-00001-of-00002.gguf", folder);
    snprintf(second, sizeof second, "%s/m-00002-of-00002.gguf", folder);
    if (qn_gguf_writer_create(first, &w) || qn_gguf_writer_add_u32(w, "split.no", 0) ||
        qn_gguf_writer_add_u32(w, "split.count", 2) || qn_gguf_writer_add_u32(w, "split.tensors.count", 2) ||
        qn_gguf_writer_add_tensor(w, (qn_string){ "first", 5 }, QN_TYPE_Q2_0, 1, dims, sizeof zeros) ||
        qn_gguf_writer_begin_data(w) || qn_gguf_writer_data(w, zeros, sizeof zeros) || qn_gguf_writer_finish(w))
        abort();
    qn_gguf_writer_free(w);
}

static void open_as_second(const uint8_t *data, size_t size)
{
    qn_gguf *file;
    if (!*first)
        make_first();
    FILE *f = fopen(second, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f))
        abort();
    if (qn_gguf_open(first, &file) != QN_OK)
        return;
    if (qn_gguf_n_tensors(file) != 2 || qn_gguf_n_files(file) != 2)
        abort();
    look(file);
    qn_gguf_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qn_gguf *file;
    uint32_t n_files = 0;
    const qn_status status = qn_gguf_open_memory(data, size, "fuzz", &file);
    if (status == QN_OK) {
        look(file);
        (void)qn_gguf_get_u32(file, "split.count", false, &n_files);
        qn_gguf_close(file);
    }
    if (n_files == 2)
        open_as_second(data, size);
    return 0;
}
